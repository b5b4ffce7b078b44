"""Techniques of the category overparameterization."""
