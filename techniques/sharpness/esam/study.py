"""Sharpness and label noise, beside the reference, SAM and its other cheaper forms."""

from techniques.sharpness.sam.study import plot, study

__all__ = ["plot", "study"]
