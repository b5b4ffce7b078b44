"""Implements the convergence of over-parameterised networks."""
