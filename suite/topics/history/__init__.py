"""Whether a technique's gain changed over time."""
