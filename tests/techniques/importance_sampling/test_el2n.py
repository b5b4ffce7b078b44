"""EL2N: the score against its formula, the choice of examples, and what the scoring costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.loop.run import Run
from techniques.importance_sampling.el2n.technique import highest
from techniques.importance_sampling.shared.error_norms import error_norms
from tests.runs import new_recording, new_run


def by_formula(logits: Tensor, targets: Tensor) -> Tensor:
    """||softmax(f) - y||_2 in float64."""
    return (logits.double().softmax(-1) - F.one_hot(targets, logits.shape[-1])).norm(dim=-1)


@given(seed=st.integers(0, 10_000), spread=st.floats(0.01, 50))
@settings(max_examples=30, deadline=None)
def test_classification_score_is_the_formula_and_at_most_the_root_of_2(seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(16, 7, generator=generator) * spread).requires_grad_()
    targets = torch.randint(7, (16,), generator=generator)
    scores = error_norms(F.cross_entropy(logits, targets, reduction="none"), logits)
    torch.testing.assert_close(scores.double(), by_formula(logits.detach(), targets), rtol=1e-4, atol=1e-5)
    assert scores.min() >= 0
    assert scores.max() <= 2**0.5 + 1e-5


def test_text_score_is_the_mean_over_the_tokens_that_count() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator).requires_grad_()
    targets = torch.randint(11, (3, 5), generator=generator)
    counted = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 0, 1], [0, 0, 0, 1, 0]]).bool()
    tokens = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 5) * counted
    scores = error_norms(tokens.sum(1) / counted.sum(1), logits)
    expected = (by_formula(logits.detach(), targets) * counted).sum(1) / counted.sum(1)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("technique", ["el2n", "grand"])
def test_the_steps_shrink_with_the_data_only_where_asked_for(technique: str) -> None:
    stack = f"{technique}:keep=0.25,runs=1"
    plain, whole, fewer = (
        new_run("vit", each, size="pico", steps=10) for each in ("baseline", stack, f"{stack},shorter=true")
    )
    assert whole.recipe == plain.recipe
    assert (fewer.recipe.steps, fewer.recipe) == (3, replace(plain.recipe, steps=3))
    assert all(torch.equal(each, fewer.data.train.tensors[name]) for name, each in whole.data.train.tensors.items())


@pytest.mark.parametrize(("shorter", "steps"), [("false", 8), ("true", 4)])
def test_probes_count_the_steps_of_both_forms(shorter: str, steps: int) -> None:
    recording = new_recording("vit", f"el2n:runs=1,shorter={shorter}", size="pico", recipe="classic", steps=8)
    recording.train(steps)
    assert recording.probes()["el2n.off_steps"] == 0
    recording.run.technique.techniques["el2n"].shorter = shorter == "false"  # type: ignore[attr-defined]
    assert recording.probes()["el2n.off_steps"] == 4


@pytest.mark.parametrize("baseline", ["vit", "gpt"])
def test_trains_on_the_examples_with_the_highest_scores(baseline: str) -> None:
    steps = 20
    reference = new_run(baseline, "baseline", steps=steps)
    run = new_run(baseline, "el2n:keep=0.25,runs=1,scout=0.1", steps=steps)
    examples = min(steps * run.recipe.batch_size, len(reference.data.train))
    assert run.recipe == reference.recipe
    assert len(run.data.train) == examples // 4
    scores = run.technique.techniques["el2n"].scores.mean(0)  # type: ignore[attr-defined]
    assert scores.shape == (examples,)
    assert 0 <= scores.min() <= scores.max() <= 2**0.5 + 1e-5
    name = next(iter(run.data.train.tensors))
    kept = {each.numpy().tobytes() for each in run.data.train.tensors[name]}
    everything = {each.numpy().tobytes() for each in reference.data.train.tensors[name]}
    assert kept <= everything


def test_a_trained_network_finds_wrong_labels_hard() -> None:
    """Wrongly labelled digits score above the others: why offset exists, and that the score sees the labels."""
    run = new_run("vit", "baseline", recipe="classic", steps=30)
    run.train(30)
    run.model.eval()
    batch = run.data.held_out("test", 128)[0]
    wrong = torch.arange(len(batch["labels"])) % 8 == 0
    labels = torch.where(wrong, (batch["labels"] + 1) % 10, batch["labels"])
    with torch.no_grad():
        logits = run.baseline.forward(run.model, batch).logits
    logits = logits.detach().requires_grad_()
    scores = error_norms(F.cross_entropy(logits, labels, reduction="none"), logits)
    assert scores[wrong].mean() > scores[~wrong].mean()


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
