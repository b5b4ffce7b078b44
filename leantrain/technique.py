"""Has the contract of a technique, for entries in a package of your own: everything that its files import of leantrain.

    >>> from leantrain.technique import Run, Technique

A technique overrides only what it changes (:class:`Technique` has every method, each with what it is given and when it
is called). ``leantrain new`` writes a working one with its card, its probes and its test.
"""

from suite.device.random_state import RandomState
from suite.kernels.wrapped import WrappedOptimizer
from suite.loop.data import Batch, Data
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from suite.model.anatomy import Anatomy, anatomy
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from suite.record.job import StackError

__all__ = [
    "Act",
    "Anatomy",
    "Batch",
    "Data",
    "ParameterGroups",
    "RandomState",
    "Recipe",
    "Recording",
    "Run",
    "Site",
    "StackError",
    "Technique",
    "Trace",
    "WrappedOptimizer",
    "anatomy",
    "judged",
    "judged_as",
]
