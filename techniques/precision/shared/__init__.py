"""Holds what techniques of this category share."""
