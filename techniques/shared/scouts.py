"""Collects the runs that a technique trains to know what to do, as its set-up starts them: for the probes of ``el2n``
and ``lth_imp``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from suite.loop.run import Run


@dataclass(frozen=True)
class Scout:
    """Holds a run, and its parameters before its first step, by name."""

    run: Run
    start: dict[str, Tensor]


@contextmanager
def scouts_of(run: Run) -> Iterator[list[Scout]]:
    """Collects the scouts that the run starts meanwhile."""
    scouts: list[Scout] = []
    plain = run.scout

    def noted(*arguments: Any, **options: Any) -> Run:
        scout = plain(*arguments, **options)
        start = {name: parameter.detach().clone() for name, parameter in scout.model.named_parameters()}
        scouts.append(Scout(scout, start))
        return scout

    run.scout = noted  # type: ignore[method-assign]
    try:
        yield scouts
    finally:
        del run.scout  # the method comes back
