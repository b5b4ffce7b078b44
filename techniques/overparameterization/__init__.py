"""Holds the techniques of the category overparameterization."""
