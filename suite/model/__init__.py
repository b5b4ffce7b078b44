"""Sees a user's model by its structure: blocks and their parts, attention functions, consecutive blocks as segments.

What belongs here finds or changes parts of any Transformer, whatever its library calls them, and knows no technique,
baseline or run. It may import torch, and nothing else of the suite. It hands on :func:`~suite.model.anatomy.anatomy`,
the one way in which techniques reach into a model.
"""
