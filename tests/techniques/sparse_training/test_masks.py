"""What all techniques of sparse training keep: as many connections in each layer after every step, nothing outside of
them, and connections that move when the technique says so and at no other time.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from suite.entries.catalogue import catalogue
from techniques.shared.sparse.masks import density, masked, slots
from tests.runs import new_run


class Case(NamedTuple):
    """Settings under which connections move after these of 12 steps; ``kept`` is the share of them at the start."""

    settings: str
    kept: float
    moves: tuple[int, ...] = ()


CASES = {
    "set": Case("interval=3", 0.2, (3, 6, 9)),  # the topology stays after the last epoch
    "svite": Case("interval=3", 0.5, (3, 6, 9)),
    "rigl": Case("distribution=uniform,interval=3", 0.2, (1, 4, 7)),  # until three quarters of the steps
    "snip": Case("", 0.2),
    "grasp": Case("", 0.2),
    "lth_imp": Case("rounds=1", 0.8),
}


@pytest.mark.parametrize(
    ("name", "baseline"),
    [pytest.param(name, each, id=f"{name}-{each}") for name in CASES for each in catalogue()[name].card.baselines[:1]],
)
def test_masks_hold_after_every_step_and_move_when_they_should(name: str, baseline: str) -> None:
    settings, kept, moves = CASES[name]
    run = new_run(baseline, f"{name}:{settings}", size="pico", recipe="classic", steps=12)
    pairs = masked(run.anatomy)
    counts = [int(mask.sum()) for _, mask in pairs]
    assert density(run) == pytest.approx(kept, abs=0.01 if name == "set" else 1e-3)  # its graphs are drawn
    if "uniform" in settings:
        assert counts == [round(kept * mask.numel()) for _, mask in pairs]
    moved = []
    for step in range(1, 13):
        before = [mask.clone() for _, mask in pairs]
        run.train(1)
        assert [int(mask.sum()) for _, mask in pairs] == counts
        if any(not torch.equal(mask, old) for (_, mask), old in zip(pairs, before, strict=True)):
            moved.append(step)
        for weight, mask in pairs:
            for tensor in (weight, *slots(run, weight)):
                assert not tensor[~mask].any()
    assert tuple(moved) == moves
