"""Models the accelerators of papers: one model for all of them, and their constants with where each comes from."""
