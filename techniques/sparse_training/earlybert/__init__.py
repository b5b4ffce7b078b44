"""Implements EarlyBERT."""
