"""Implements the generalisation of over-parameterised networks."""
