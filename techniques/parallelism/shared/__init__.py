"""Holds what the techniques of this category alone share."""
