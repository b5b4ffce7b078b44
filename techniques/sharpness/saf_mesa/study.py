"""Sharpness and label noise, beside the reference, SAM and its other cheaper forms."""

from techniques.sharpness.sam.study import BASELINES, plot, study

__all__ = ["BASELINES", "plot", "study"]
