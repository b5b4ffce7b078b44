"""Lottery tickets: late rewinding to the bit, and the order of a stack."""

from typing import Any

import pytest
import torch

from suite.loop.run import Run
from techniques.shared.sparse.masks import masked
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
