"""A run that is saved and resumed ends where the whole one does, to the bit, for what a technique keeps beside the
model: masks that move, blocks that grow, units that go, past outputs, an update that is under way.

The conformance suite resumes every technique at its defaults, once. Here are the settings, the moments (before, at and
after a change of the model) and the lengths that their states are about.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from suite.loop.run import Run
from tests.runs import new_run


class Case(NamedTuple):
    """A run of ``steps``, saved after each of ``saved_at``."""

    stack: str
    baseline: str
    size: str
    steps: int
    saved_at: tuple[int, ...]


CASES = [
    Case("set:interval=2", "gpt", "pico", 8, (3,)),
    Case("svite:interval=2", "vit", "pico", 8, (3,)),
    Case("rigl:interval=2", "gpt", "pico", 8, (3,)),
    Case("snip:shuffled=true", "gpt", "pico", 6, (3,)),
    Case("grasp", "gpt", "pico", 6, (3,)),
    Case("lth_imp:rounds=1", "gpt", "pico", 6, (3,)),
    Case("earlybert:search=0.2", "gpt", "nano", 20, (2, 4, 6)),
    Case("progressive_stacking:fractions=0.2/0.4", "gpt", "nano", 10, (1, 3, 5)),
    Case("pld", "gpt", "nano", 16, (5,)),
    Case("progressive_resolution", "mae", "nano", 8, (3,)),
    Case("progressive_resolution", "gpt", "nano", 8, (3,)),
    Case("progressive_patch:stages=3", "vit", "nano", 9, (1, 4, 6)),
    Case("compound_grow:carry_optimizer=false", "gpt", "pico", 8, (1, 2, 3, 4, 6)),
    Case("compound_grow:carry_optimizer=true", "gpt", "pico", 8, (1, 2, 3, 4, 6)),
    Case("bert2bert:carry_optimizer=false,depth=2", "gpt", "pico", 8, (1, 2, 5)),
    Case("bert2bert:carry_optimizer=true,depth=2", "gpt", "pico", 8, (1, 2, 5)),
    Case("arora_depth:depth=3", "gpt", "pico", 6, (3,)),
    Case("overparam_convergence", "gpt", "pico", 6, (3,)),
    Case("overparam_generalization:radius=0.02", "vit", "pico", 6, (3,)),
    Case("train_large_compress:prune=0.6,rounds=3", "gpt", "pico", 30, (2, 6)),
    Case("early_bird", "vit", "pico", 20, (3, 16)),
    Case("svite:interval=2,structured=true", "vit", "nano", 9, (4,)),
    Case("flip:tune=0.25", "vit", "pico", 10, (2, 8)),
    Case("is_gradnorm:threshold=0", "vit", "pico", 9, (4,)),
    Case("saf_mesa:decay=0.9,start=0", "vit", "nano", 8, (5,)),
    Case("acgc:history=2,interval=2", "bert", "pico", 6, (3,)),
    Case("gact:interval=3", "vit", "pico", 8, (4,)),
    Case("fp8_hybrid:amax_history=2", "gpt", "pico", 6, (3,)),
    Case("int_only:accumulator_bits=16,rounding=pseudo", "vit", "pico", 6, (3,)),
    Case("l2l:half=true", "gpt", "pico", 4, (2,)),
    Case("zero_infinity_param:half=true,tiles=2", "gpt", "pico", 4, (2,)),
    Case("zero_infinity_param:tier=file", "gpt", "pico", 4, (2,)),
    Case("zero_offload:half=true", "gpt", "pico", 6, (3,)),
    Case("zero_offload:delay_after=1", "gpt", "pico", 6, (3,)),
]


def name_of(case: Case) -> str:
    return "-".join((*case.stack.split(":"), case.baseline))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_resumed_run_ends_as_the_whole_one_to_the_bit(case: Case, tmp_path: Path) -> None:
    def begun() -> Run:
        return new_run(case.baseline, case.stack, size=case.size, recipe="classic", steps=case.steps)

    whole, losses = begun(), list[float]()
    for step in case.saved_at:
        losses += whole.train(step - len(losses))
        whole.save(tmp_path / str(step))
    steps = whole.recipe.steps
    losses += whole.train(steps - len(losses))
    for step in case.saved_at:
        resumed = begun()
        resumed.load(tmp_path / str(step))
        assert resumed.train(steps - step) == losses[step:], f"from step {step}"
        ends, own = resumed.model.state_dict(), whole.model.state_dict()  # weights, and masks
        assert ends.keys() == own.keys()
        assert all(torch.equal(ends[name], each) for name, each in own.items()), f"from step {step}"
        assert resumed.probes() == whole.probes(), f"from step {step}"
