"""The accelerators of papers, modelled: one model for all of them, and their constants with where each comes from."""
