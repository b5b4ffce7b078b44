"""Records for others, and of others."""
