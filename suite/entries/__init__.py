"""Describes and finds entries: cards, the catalogue, the spelling of stacks, settings, checkpoints.

It imports ``loop``, and hands on the run of a job (:func:`suite.entries.together.run_of`), the catalogue of what is
installed and the hashes of the code that evidence depends on. Cards and the catalogue load no torch.
"""
