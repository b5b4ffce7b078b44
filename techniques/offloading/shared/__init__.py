"""Has what techniques of this category share."""
