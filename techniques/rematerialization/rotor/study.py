"""Compares time with memory: rotor beside every other solver, on each baseline's own model (the paper's figure 4)."""

from suite.topics.studies.memory_budgets import plot, study

__all__ = ["plot", "study"]
