"""What techniques of this category share."""
