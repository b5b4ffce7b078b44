"""Train large, then compress."""
