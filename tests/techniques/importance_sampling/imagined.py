"""A laboratory whose runs are imagined: harder examples teach more of many, easier ones more of few."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.record.job import Setting, canonical, split
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.lab import Lab
from tests.factories import with_curve

LOSSES = {"hard": 1.0, "easy": 2.0, "random": 3.0}
REFERENCE = 0.5


class ImaginedLab(Lab):
    """Two seeds of every stack finish and a third fails; the loss says the order."""

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        return {canonical(stack): [_pair(stack, seed) for seed in range(3)] for stack in stacks}


def imagined_lab(setting: Setting, folder: Path) -> Lab:
    return ImaginedLab(setting, folder, seeds=2, minutes=1.0)


def _pair(stack: str, seed: int) -> tuple[Learned, Learned]:
    order = dict(split(stack))[split(stack)[0][0]]["order"]
    status: Any = "ok" if seed < 2 else "failed"
    curves = [[Evaluation(step=4, loss=loss, metrics={"accuracy": 1 / loss})] for loss in (REFERENCE, LOSSES[order])]
    return with_curve("baseline", curves[0], seed), with_curve(stack, curves[1], seed, status=status)
