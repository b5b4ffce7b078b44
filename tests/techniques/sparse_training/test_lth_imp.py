"""Lottery tickets: pruning against a ranking one by one, rewinding to the bit, and the cost of all trainings."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from techniques.shared.sparse.masks import density, masked
from techniques.sparse_training.lth_imp.technique import pruned
from tests.runs import new_recording, new_run


def running(settings: str = "", baseline: str = "gpt", steps: int = 8) -> Run:
    return new_run(baseline, f"lth_imp{settings}", size="pico", recipe="classic", steps=steps)


@pytest.fixture
def scouts(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The trainings that set-ups make from now on."""
    every: list[Run] = []
    plain = Run.scout

    def noted(*arguments: Any, **options: Any) -> Run:
        every.append(plain(*arguments, **options))
        return every[-1]

    monkeypatch.setattr(Run, "scout", noted)
    return every


@given(st.integers(0, 10_000), st.floats(0.01, 0.99))
def test_the_smallest_of_all_layers_go_one_at_a_time(seed, rate):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(*shape, generator=generator) for shape in ((4, 5), (3, 3))]
    masks = [torch.rand(each.shape, generator=generator) < 0.7 for each in weights]
    left = {(layer, *place) for layer, mask in enumerate(masks) for place in mask.nonzero().tolist()}
    for _ in range(math.ceil(rate * len(left))):
        left.remove(min(left, key=lambda place: abs(weights[place[0]][place[1:]].item())))
    new = pruned(weights, masks, rate)
    assert {(layer, *place) for layer, mask in enumerate(new) for place in mask.nonzero().tolist()} == left


@pytest.mark.parametrize("baseline", ["bert", "gpt", "mae", "vit"])
def test_a_ticket_is_the_first_weights_and_costs_every_training(baseline, scouts):
    run = running(":rounds=2", baseline)
    plain = new_run(baseline, size="pico", recipe="classic", steps=8)
    assert [scout.step for scout in scouts] == [8, 8]
    assert density(run) == pytest.approx(0.64, abs=1e-3)
    own, matrices = dict(run.model.named_parameters()), {id(weight): mask for weight, mask in masked(run.anatomy)}
    for name, each in plain.model.named_parameters():
        kept = matrices.get(id(own[name]), torch.ones_like(each, dtype=torch.bool))
        assert torch.equal(own[name], each * kept)


def test_the_first_round_is_the_dense_run_to_the_bit(scouts):
    running(":rounds=1")
    plain = new_run("gpt", size="pico", recipe="classic", steps=8)
    plain.train(8)
    ends = dict(scouts[0].model.named_parameters())
    assert all(torch.equal(ends[name], each) for name, each in plain.model.named_parameters())


def test_each_round_prunes_what_the_one_before_left(scouts):
    run = running(":rounds=3,rate=0.5")
    masks = [[mask for _, mask in masked(each.anatomy)] for each in (*scouts, run)]
    counts = [sum(int(mask.sum()) for mask in each) for each in masks]
    assert all(after == before - math.ceil(before / 2) for before, after in pairwise(counts))
    for before, after in pairwise(masks):
        assert not any((new & ~old).any() for old, new in zip(before, after, strict=True))


def test_late_rewinding_goes_back_to_an_early_step_of_the_first_training(scouts):
    run = running(":rounds=2,rewind=0.25")
    plain = new_run("gpt", size="pico", recipe="classic", steps=8)
    plain.train(2)
    own = dict(run.model.named_parameters())
    matrices = {id(weight): mask for weight, mask in masked(run.anatomy)}
    for name, each in plain.model.named_parameters():
        assert torch.equal(own[name], each * matrices.get(id(own[name]), torch.ones_like(each)))
    assert [scout.step for scout in scouts] == [8, 8]


def test_a_control_is_what_the_ticket_is_not(scouts):
    ticket, drawn, moved = (
        masked(running(f":rounds=1{control}").anatomy)
        for control in ("", ",control=reinitialised", ",control=shuffled")
    )
    for (weight, mask), (other, same), (first, places) in zip(ticket, drawn, moved, strict=True):
        assert torch.equal(mask, same) and not torch.isclose(weight[mask], other[mask], rtol=1e-6).any()
        assert 0.8 < (other[mask].std() / weight[mask].std()).item() < 1.25  # of one distribution
        assert int(places.sum()) == int(mask.sum()) and (places != mask).any()
        assert torch.equal(first[mask & places], weight[mask & places])
    assert len(scouts) == 4  # a training for each, and the one whose first weights are taken, which never trains
    assert [scout.step for scout in scouts] == [8, 8, 0, 8]


def test_after_a_technique_that_changed_the_layers_it_is_refused():
    with pytest.raises(ValueError, match="prune first"):
        new_run("gpt", "progressive_stacking+lth_imp", size="pico", recipe="classic", steps=8)


def test_probes_hold_of_late_rewinding():
    recording = new_recording("vit", "lth_imp:rounds=2,rate=0.3,rewind=0.25", size="pico", recipe="classic", steps=8)
    recording.train(8)
    probes = recording.probes()
    wrong = ("off_dense", "off_start", "off_initial", "off_rate", "wrongly_pruned", "topology_changed", "dead")
    assert [probes[f"lth_imp.{name}"] for name in wrong] == [0] * len(wrong)
    assert probes["lth_imp.cost_in_runs"] == 3.0
    assert probes["lth_imp.remaining"] == pytest.approx(0.49, abs=1e-3)
