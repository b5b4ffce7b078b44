"""Implements Train large, then compress."""
