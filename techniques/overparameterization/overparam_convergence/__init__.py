"""Convergence of over-parameterised networks."""
