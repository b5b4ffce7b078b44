"""Keeps masks of weights: which connections stay, and products with them."""
