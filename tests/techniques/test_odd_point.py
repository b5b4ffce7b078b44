"""Whoever promises the reference's update gives it at the odd point, too, to the bit: with nine blocks, a batch of
five, rows of thirteen tokens and dropout, whether embeddings are tied or not (:mod:`tests.points`).

What all others do there stands in their golden records: where they end, or the sentence by which they refuse it. Three
ranks with parts that are not alike are those of test_three_ranks.py.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from suite.entries.catalogue import catalogue, reference_of
from suite.measure.exact import one_thread
from tests.points import Point

STEPS = 2
PLANNING = ("rematerialization", "offloading")
"""Categories of those that run blocks again, or keep what they save elsewhere."""
OTHERWISE = {"l2l": "draws dropout for each part of a batch by itself"}
ENGINES = ("checkmate_milp", "ckpt_chen_sqrt", "pofo", "rotor", "torch_sac", "vdnn")
"""Which between them run blocks by every engine that there is."""
NEARLY = {"mlm_sparse_head": 1e-6}
"""Those that sum in another order, and how far a weight may be."""
EXACT = [name for name, entry in catalogue().items() if entry.card.category in PLANNING and name not in OTHERWISE]


class End(NamedTuple):
    losses: list[float]
    weights: dict[str, Tensor]


def end(stack: str, point: Point) -> End:
    with one_thread():
        run = point.run(stack)
        losses = run.train(STEPS)
    return End(losses, {name: each.detach().clone() for name, each in run.model.state_dict().items()})


@cache
def reference_end(reference: str, point: Point) -> End:
    return end(reference, point)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", [*EXACT, *NEARLY])
def test_its_update_is_the_reference_s(name: str, tied: bool) -> None:
    check(name, Point(catalogue()[name].card.baselines[0], steps=8, odd=True, tied=tied))


@pytest.mark.parametrize("name", ENGINES)
def test_so_it_is_under_autocast(name: str) -> None:
    """Where a run that is made again casts its weights again."""
    point = Point("gpt", steps=8, odd=True, recipe="modern")
    assert point.run("baseline").recipe.precision == "bf16"
    check(name, point)


def check(name: str, point: Point) -> None:
    own, theirs = end(name, point), reference_end(reference_of(name)[0], point)
    most = NEARLY.get(name, 0.0)
    assert own.losses == pytest.approx(theirs.losses, abs=most)
    assert own.weights.keys() == theirs.weights.keys()
    for key, weight in theirs.weights.items():
        torch.testing.assert_close(own.weights[key], weight, rtol=0, atol=most, msg=key)


def test_the_odd_point_is_odd() -> None:
    """And embeddings are tied there or not, by whether they are asked to be."""
    for baseline in ("bert", "gpt"):
        tied, untied = (Point(baseline, steps=8, odd=True, tied=each).run("baseline") for each in (True, False))
        assert tied.anatomy.depth % 2 and tied.recipe.batch_size % 4 and tied.next_batch()[0]["input_ids"].shape[1] % 4
        shared = [
            each.model.get_input_embeddings().weight is each.model.get_output_embeddings().weight
            for each in (tied, untied)
        ]
        assert shared == [True, False]
    for baseline in ("vit", "mae"):
        drops = [
            each.p
            for each in Point(baseline, steps=8, odd=True).run("baseline").model.modules()
            if isinstance(each, torch.nn.Dropout)
        ]
        assert set(drops) == {0.1}
