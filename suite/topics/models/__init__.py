"""Builds the matrix of models: every technique on every architecture that a baseline names, at a tiny size.

Of each cell there are two good ends: the technique *works* (it attaches, trains and changes something, and its exact
claims hold), or it is *refused* with a sentence. Anything else is a *defect*: a silent no-op above all.

:mod:`trial` decides one cell, :mod:`crew` runs a model's cells in processes of their own, :mod:`survey` makes the
matrix, :mod:`tried_models` keeps it. Only the last is imported without torch.
"""
