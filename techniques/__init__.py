"""Holds one folder a technique, by category."""
