"""Recommends what to train a user's model with: the entries as a choice sees them, their counts, and the finalists'
measuring."""
