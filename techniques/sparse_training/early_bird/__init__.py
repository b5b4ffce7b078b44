"""Implements early-bird tickets."""
