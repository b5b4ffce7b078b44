"""Lottery tickets: pruning against a ranking one by one, rewinding to the bit, and the cost of all trainings."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from techniques.shared.sparse.masks import masked
from techniques.sparse_training.lth_imp.technique import pruned
from tests.runs import new_run


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


def test_late_rewinding_goes_back_to_an_early_step_of_the_first_training(scouts):
    run = running(":rounds=2,rewind=0.25")
    plain = new_run("gpt", size="pico", recipe="classic", steps=8)
    plain.train(2)
    own = dict(run.model.named_parameters())
    matrices = {id(weight): mask for weight, mask in masked(run.anatomy)}
    for name, each in plain.model.named_parameters():
        assert torch.equal(own[name], each * matrices.get(id(own[name]), torch.ones_like(each)))
    assert [scout.step for scout in scouts] == [8, 8]


def test_after_a_technique_that_changed_the_layers_it_is_refused():
    with pytest.raises(ValueError, match="prune first"):
        new_run("gpt", "progressive_stacking+lth_imp", size="pico", recipe="classic", steps=8)
