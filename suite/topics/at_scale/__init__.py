"""What techniques take at the papers' own sizes."""
