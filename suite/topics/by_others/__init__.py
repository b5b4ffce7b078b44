"""What others measured of a technique itself, on its page."""
