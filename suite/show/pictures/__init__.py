"""Drawings: plots, charts, badge and poster."""
