"""One folder a technique, by category."""
