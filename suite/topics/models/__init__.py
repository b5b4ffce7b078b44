"""Builds the matrix of models: every technique on every architecture that a baseline names, at a tiny size, or on a
user's own.

A cell ends in one of four ways. The technique *works*: it attaches, trains and changes something, and its identities
hold. It *refuses* with a sentence. It *does not apply*: the model has no attention, or the technique is about models of
another kind and says so. Anything else is a *defect*: a silent no-op above all. A cell carries the hash of what was
tried, so that an old one is seen, and a later command tries that one alone.

:mod:`trial` decides one cell, :mod:`crew` runs a model's cells in processes of their own, which start with everything
loaded (:mod:`preloaded`), :mod:`survey` makes the matrix, :mod:`tried_models` keeps it, :mod:`models_page` shows all of
it. Only the last two are imported without torch.
"""
