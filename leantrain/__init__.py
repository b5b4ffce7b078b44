"""Offers leantrain as a library: compare and count techniques, read records, use the optimizers and layers in your own
loop.

    >>> import leantrain
    >>> leantrain.compare("lion", "adamw", baseline="gpt")       # head to head, ratios with intervals
    >>> leantrain.count("lora", baseline="gpt", size="base")     # bytes and FLOPs of a step, without its memory
    >>> leantrain.records("results")                             # a pandas DataFrame, one line per metric
    >>> leantrain.optim.Lion(model.parameters(), lr=1e-4)        # in any training loop

:class:`leantrain.Training` and :class:`leantrain.Effort` say what a comparison trains and how much it
measures.

``leantrain.fit(model, batch, loss, memory="8GB")`` keeps a model of yours within a budget of memory
(:mod:`leantrain.fitting`); ``leantrain.apply(model, "lora+lion")`` puts a stack of the catalogue into a loop of yours
(:mod:`leantrain.applying`), and ``leantrain.adapters`` merges and saves what lora trained. ``leantrain.judge(
reference, contender)`` judges runs that leantrain never saw (:mod:`leantrain.judging`); ``leantrain.Ruler(budgets,
losses)`` is a scaling curve alone, on which a loss is read as a budget. Neither loads torch.

Importing it is fast: what needs torch or pandas is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leantrain import adapters, communication, layers, optim, trainer
    from leantrain.applying import Applied, apply
    from leantrain.comparing import Compared, compare
    from leantrain.counting import Counted, count
    from leantrain.fitted_plan import FittedPlan
    from leantrain.fitting import Fitted, fit
    from leantrain.judging import JudgedRuns, judge
    from leantrain.tables import records
    from leantrain.training import Effort, Training
    from suite.judge.ruler import Ruler

    __version__: str

__all__ = [
    "Applied",
    "Compared",
    "Counted",
    "Effort",
    "Fitted",
    "FittedPlan",
    "JudgedRuns",
    "Ruler",
    "Training",
    "__version__",
    "adapters",
    "apply",
    "communication",
    "compare",
    "count",
    "fit",
    "judge",
    "layers",
    "optim",
    "records",
    "trainer",
]

_MODULES = {
    "apply": "leantrain.applying",
    "Applied": "leantrain.applying",
    "adapters": "leantrain.adapters",
    "compare": "leantrain.comparing",
    "Compared": "leantrain.comparing",
    "count": "leantrain.counting",
    "Counted": "leantrain.counting",
    "records": "leantrain.tables",
    "judge": "leantrain.judging",
    "JudgedRuns": "leantrain.judging",
    "fit": "leantrain.fitting",
    "Fitted": "leantrain.fitting",
    "FittedPlan": "leantrain.fitted_plan",
    "communication": "leantrain.communication",
    "optim": "leantrain.optim",
    "layers": "leantrain.layers",
    "trainer": "leantrain.trainer",
    "Ruler": "suite.judge.ruler",
    "Effort": "leantrain.training",
    "Training": "leantrain.training",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("leantrain")
    if name not in _MODULES:
        raise AttributeError(f"module 'leantrain' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    value = module if _MODULES[name] == f"leantrain.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
