"""RigL: the invariants of its masks, its topology update written a second time, and its counts."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.anatomy import anatomy
from techniques.shared.sparse.masks import density, masked
from techniques.shared.sparse.topology import moved_topology, random_mask
from techniques.sparse_training.rigl.probes import relative_flops
from techniques.sparse_training.rigl.technique import RigL
from tests.runs import Planted, new_recording, new_run


def sparsity(run: Run) -> float:
    return 1 - density(run)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**31), st.data())
def test_topology_update_equals_one_weight_at_a_time(size, seed, data):
    random = torch.Generator().manual_seed(seed)
    weight, gradient = torch.randn(size, generator=random), torch.randn(size, generator=random)
    mask = random_mask(torch.Size([size]), 0.5, random)
    count = data.draw(st.integers(0, int(mask.sum())))

    active = {index for index in range(size) if mask[index]}
    kept = set(active)
    for _ in range(count):
        kept.remove(min(kept, key=lambda index: abs(weight[index].item())))
    grown = set(kept)
    for _ in range(count):
        grown.add(max(set(range(size)) - grown, key=lambda index: abs(gradient[index].item())))

    new = moved_topology(weight, gradient, mask, count)
    assert {index for index in range(size) if new[index]} == grown
    assert int(new.sum()) == int(mask.sum())


@pytest.mark.parametrize(("interval", "expected"), [(10, 0.2242), (100, 0.2026), (1000, 0.2003)])
def test_flops_formula_at_the_papers_sparsity(interval, expected):
    assert relative_flops(0.2, interval) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("order", ["rigl+progressive_stacking", "progressive_stacking+rigl"])
def test_masks_are_copied_with_the_blocks_that_another_technique_stacks(order):
    run = new_run("gpt", order, size="nano", recipe="classic", steps=10)
    run.train(6)
    pairs = masked(run.anatomy)
    assert len(pairs) == len(run.anatomy.linears)
    assert all(not weight[~mask].any() for weight, mask in pairs)
    assert sparsity(run) == pytest.approx(0.8, abs=1e-3)


@dataclass
class Frozen(Planted):
    """Freezes the matrices of the first ``blocks`` blocks."""

    blocks: int = 0

    def model(self, model, run):
        for block in anatomy(model).blocks[: self.blocks]:
            for part in block.linears:
                part.module.weight.requires_grad_(False)
        return model


@pytest.mark.parametrize("order", [("frozen", "rigl"), ("rigl", "frozen")])
def test_where_nothing_is_trained_it_refuses_and_does_not_skip_updates(order):
    techniques = {"frozen": Frozen(blocks=2), "rigl": RigL(interval=2)}
    with pytest.raises(ValueError, match=r"none of the blocks' matrices does: leave out"):
        new_run("gpt", Stack({name: techniques[name] for name in order}), size="pico", recipe="classic", steps=8)


def test_what_is_frozen_is_neither_masked_nor_waited_for():
    rigl = RigL(interval=2)
    run = new_run("gpt", Stack({"frozen": Frozen(blocks=1), "rigl": rigl}), size="pico", recipe="classic", steps=8)
    first, second = run.anatomy.blocks
    plain = new_run("gpt", size="pico", recipe="classic", steps=8).anatomy.blocks[0]
    run.train(8)
    for part, untouched in zip(first.linears, plain.linears, strict=True):
        assert torch.equal(part.module.weight, untouched.module.weight)
    weights = {id(part.module.weight) for part in second.linears}
    assert {id(weight) for weight, _ in masked(run.anatomy)} == weights
    assert sparsity(run) == pytest.approx(0.8, abs=1e-2)
    assert rigl.topology_updates == 3  # steps 0, 2 and 4; 6 is the end


def test_the_runs_flops_are_the_formulas_at_its_own_interval():
    """Written out: an update of the topology and interval - 1 of the weights cost what the formula says for dT of
    these; and one that comes at another interval does not."""
    interval = 3
    recording = new_recording("gpt", f"rigl:interval={interval}", size="pico", recipe="classic", steps=20)
    recording.train(20)
    probes = recording.probes()
    assert probes["rigl.flops_over_formula"] == pytest.approx(1.0, rel=1e-9)
    rigl = recording.run.technique.techniques["rigl"]
    density, updates = 1 - sparsity(recording.run), math.ceil(15 / interval)
    spent = updates * (2 * density + 1) + (20 - updates) * 3 * density
    assert rigl.probes(recording.run)["relative_flops"] == pytest.approx(spent / 60)
    rigl.interval += 1
    assert recording.probes()["rigl.flops_over_formula"] != pytest.approx(1.0, rel=1e-3)
    assert recording.probes()["rigl.off_schedule"] > 0


def test_interval_is_the_papers_in_a_long_run_and_shorter_in_a_short_one():
    assert RigL().steps_between(32_000) == 100
    assert RigL().steps_between(160) == 5
    assert RigL().steps_between(5) == 2
    assert RigL(interval=7).steps_between(160) == 7
