"""Holds code that the techniques of this category share: products of sparse matrices. Nothing here imports a
technique."""
