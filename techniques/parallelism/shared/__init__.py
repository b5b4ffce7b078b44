"""What the techniques of this category alone share."""
