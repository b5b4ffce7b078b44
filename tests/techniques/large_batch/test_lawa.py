"""LAWA: what a checkpoint holds, is saved as and stacks with, and the study."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.record.schema import Evaluation, Learned
from techniques.large_batch.lawa.study import Gain, plot, study
from techniques.large_batch.lawa.technique import Lawa, snapshot
from tests.factories import with_curve
from tests.runs import new_run


def run_of(stack: str, steps: int = 12) -> Run:
    return new_run("vit", stack, recipe="classic", steps=steps)


class Tied(nn.Module):
    """Tied weights and an integer buffer, which an in-place division would break."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(9))


def test_snapshots_are_copies_and_not_the_live_weights() -> None:
    model = Tied()
    taken = snapshot(model)
    with torch.no_grad():
        model.head.weight.add_(1)
    assert not torch.equal(taken["embedding.weight"], model.embedding.weight)
    assert list(taken) == ["embedding.weight"], "tied weights are kept once, buffers not at all"


def test_checkpoints_survive_saving() -> None:
    one, other = Lawa(k=2), Lawa(k=2)
    for step in (1, 2, 3):
        one.taken.append((step, {"w": torch.full((2,), float(step))}))
    other.restore(one.state(), None)  # type: ignore[arg-type]
    assert [step for step, _ in other.taken] == [2, 3]
    assert other.taken.maxlen == 2


def test_averages_before_an_earlier_technique_merges() -> None:
    """In a stack after another averaging technique, that one sees LAWA's mean, not the other way round."""
    run = run_of("layerscale+lawa:k=2,interval=0.1")
    run.train(3)
    one = snapshot(run.technique.evaluated(run.model, run))
    lawa = run.technique.techniques["lawa"]  # type: ignore[attr-defined]
    other = snapshot(lawa.evaluated(nn.Linear(1, 1), run))
    assert all(torch.equal(one[name], other[name]) for name in one)


def imagined(gain: float, schedule: str, seed: int = 0) -> Learned:
    """Averaging gains in proportion to the rate."""
    recipe = Recipe(steps=100, batch_size=8, learning_rate=1e-3, schedule=schedule)  # type: ignore[arg-type]
    rate = lambda step: recipe.learning_rate_at(step - 1) / 1e-3 if step else 0.0  # noqa: E731
    curve = [Evaluation(step=step, loss=4 - step / 100 - gain * rate(step)) for step in range(0, 101, 10)]
    return with_curve("imagined", curve, seed, recipe=recipe.as_dict())


def test_study_compares_the_averaged_with_the_current_weights_of_the_same_run() -> None:
    """Seed 2 has the current weights alone."""
    references = [imagined(0.0, "cosine", seed) for seed in range(3)]

    def runs(stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        decayed, held, current = stacks
        schedules = [
            build(each).recipe(Recipe(steps=100, batch_size=8, learning_rate=1e-3)).schedule for each in stacks
        ]
        assert schedules == ["cosine", "constant", "constant"]
        return {
            decayed: [(each, imagined(0.5, "cosine", each.seed)) for each in references[:2]],
            held: [(each, imagined(0.5, "constant", each.seed)) for each in references[1::-1]],
            current: [(each, imagined(0.0, "constant", each.seed)) for each in references],
        }

    tables = study(SimpleNamespace(runs=runs))  # type: ignore[arg-type]
    gains = {(gain.schedule, gain.step): gain for gain in (Gain(*each) for each in tables[0].rows)}
    assert len(gains) == 20 and {gain.seeds for gain in gains.values()} == {2}
    assert gains["held", 60].ratio == pytest.approx(2.9 / 3.4)
    assert (gains["held", 100].rate, gains["decayed", 100].rate) == (1.0, pytest.approx(0))
    (decayed, held) = tables[1].rows
    assert decayed[:2] == ("decayed", 10) and decayed[3] == pytest.approx(1)
    assert held == ("held", 10, 1.0, pytest.approx(2.5 / 3))
    assert len(plot(tables).axes[0].lines) == 3
    empty = study(SimpleNamespace(runs=lambda stacks: {each: [] for each in stacks}))  # type: ignore[arg-type]
    assert [table.rows for table in empty] == [[], []]
