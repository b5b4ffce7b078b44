"""Has the code that the techniques of this category share, which mask attention. Nothing here imports a technique."""
