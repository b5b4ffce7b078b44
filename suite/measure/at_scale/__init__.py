"""Counts and models what a step takes at the paper's size, without weights."""
