"""Generalisation of over-parameterised networks."""
