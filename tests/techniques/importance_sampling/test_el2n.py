"""EL2N: the very highest scores, a scout's schedule and what it learns, and no scout where nothing is left out."""

from typing import Any

import pytest
import torch

from suite.loop.run import Run
from techniques.importance_sampling.el2n.technique import highest
from tests.runs import new_run


def test_keeps_the_highest_and_can_leave_out_the_very_highest() -> None:
    scores = torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3, 0.2, 0.8, 0.4, 0.6, 0.0])
    assert highest(scores, 0.3).tolist() == [1, 3, 6]
    assert highest(scores, 0.3, offset=0.2).tolist() == [2, 3, 8]
    assert highest(scores, 1.0).tolist() == list(range(10))


def test_keeping_everything_trains_no_scout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "scout", lambda *_, **__: pytest.fail("a scout was trained"))
    plain, run = (new_run("vit", each, steps=4) for each in ("baseline", "el2n:keep=1.0"))
    assert run.recipe == plain.recipe
    assert plain.train(1) == run.train(1)


def test_scouts_have_a_whole_schedule_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten per cent of the steps of the run's own schedule are its warm-up."""
    scouts: list[Run] = []
    scout = Run.scout

    def noted(*arguments: Any, **options: Any) -> Run:
        scouts.append(scout(*arguments, **options))
        return scouts[-1]

    monkeypatch.setattr(Run, "scout", noted)
    new_run("vit", "el2n:runs=2", size="pico", steps=40)
    assert [(each.step, each.recipe.steps) for each in scouts] == [(4, 4), (4, 4)]
    rates = [scouts[0].recipe.learning_rate_at(step) for step in range(4)]
    assert rates[-1] == 0 < rates[0]


def test_probes_say_what_the_scouts_had_learned() -> None:
    """Against their own predictions on the examples that they score, which are noisy: half of the steps teach a scout
    something, a hundredth does not."""
    taught, untaught = (
        new_run("vit", f"el2n:runs=1,scout={share}", size="nano", recipe="classic", steps=100).probes()
        for share in (0.5, 0.01)
    )
    assert taught["el2n.scout_loss_over_untrained"] < 0.8
    assert taught["el2n.scout_accuracy"] > 0.4
    assert 0.9 < untaught["el2n.scout_loss_over_untrained"] < 1.1
    assert untaught["el2n.scout_accuracy"] < 0.25
