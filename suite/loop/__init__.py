"""Holds what decides a number, and nothing else: technique, stack, the run, its recipe, data and sites, what a baseline
is.

Here belongs what a technique's author has to know. It imports ``record``, ``model`` and ``meters``, and finds nothing
by name. It hands on :class:`~suite.loop.technique.Technique` to override and :class:`~suite.loop.run.Run`.
"""
