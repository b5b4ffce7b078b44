"""The grids of learning rates: equally many a side, stacks that can be built, the best rate of each and its gap."""

from types import SimpleNamespace

import pytest

from suite.entries.card import RateGrid
from suite.entries.catalogue import catalogue
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.record.job import Setting, canonical
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.rate_grid import BestRate, GridRow, best, grid_row, plot, study
from tests.factories import with_curve

ADAMW = "AdamW"
RECIPE = Recipe(steps=160, batch_size=8, learning_rate=1e-3, weight_decay=0.1)


def grid_of(id: str) -> RateGrid:
    asked = catalogue()[id].card.study
    assert isinstance(asked, RateGrid)
    return asked


def run_of(stack: str, seed: int) -> Learned:
    """An imagined run: the loss is its rate's distance from 1e-3, and rates of 1e-1 and more diverge."""
    rate = build(stack).recipe(RECIPE).learning_rate
    status = "diverged" if rate > 0.09 and seed else "ok"
    curve = [Evaluation(step=0, loss=9.0), Evaluation(step=160, loss=1 + abs(rate - 1e-3) + 0.1 * seed)]
    return with_curve(stack, curve, seed, status=status, cpu_s=2.0)


def lab(asked: list[str], baseline: str = "gpt", seeds: int = 2) -> SimpleNamespace:
    def runs(stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        asked.extend(stacks)
        contenders = {name: [run_of(name, seed) for seed in range(seeds)] for name in map(canonical, stacks)}
        return {name: [(each, each) for each in group] for name, group in contenders.items()}

    return SimpleNamespace(runs=runs, setting=Setting(baseline=baseline))


@pytest.mark.parametrize(("baseline", "sides"), [("gpt", 3), ("vit", 2)])
def test_every_side_gets_as_many_rates_at_every_batch_and_rows_say_what_ran(baseline: str, sides: int) -> None:
    asked: list[str] = []
    rates, chosen = study(lab(asked, baseline), grid_of("lion"))  # type: ignore[arg-type]
    assert len(asked) == len(set(map(canonical, asked))) == len(rates.rows) == sides * 5 * 2
    for stack, row in zip(asked, map(GridRow._make, rates.rows), strict=True):
        recipe = build(stack).recipe(RECIPE)
        assert ("lion" in stack) == (row.side != ADAMW)
        assert (recipe.batch_size, recipe.steps) == (8 * row.batch, 160 // row.batch)
        assert recipe.learning_rate_at(20) == pytest.approx(
            RECIPE.learning_rate_at(20 * row.batch) * row.rate, rel=0.05
        )
    assert [BestRate._make(each).batch for each in chosen.rows] == [1] * sides + [8] * sides
    assert len(plot([rates, chosen]).axes[0].containers) == 2 * sides


@pytest.mark.parametrize("technique", ["sgd_momentum", "acclip"])
def test_the_grid_is_around_the_techniques_own_rate(technique: str) -> None:
    asked: list[str] = []
    rates, chosen = study(lab(asked), grid_of(technique))  # type: ignore[arg-type]
    own = build(asked[-1].partition(":")[0]).recipe(RECIPE).learning_rate / RECIPE.learning_rate
    side = [row.rate for row in map(GridRow._make, rates.rows) if row.side != ADAMW]
    assert sorted(side) == pytest.approx([own * each for each in (0.1, 0.3, 1, 3, 10)], rel=0.15)
    assert own in side
    reference, other = map(BestRate._make, chosen.rows)
    assert (reference.side, reference.rate, reference.final_loss, reference.gap) == (ADAMW, 1.0, 1.05, None)
    assert reference.grid_cpu_s == other.grid_cpu_s == 20.0
    assert other.gap == pytest.approx(min(side) * 1e-3 - 1e-3)
    assert other.standard_error == pytest.approx(0.05 * 2**0.5)
    assert other.rates < 5  # the largest diverged in one seed, and its loss in the other does not count


def test_the_rate_is_chosen_by_validation_examples_and_its_loss_is_of_test_examples() -> None:
    """A rate that is lucky on the test examples is not chosen for that."""
    good, lucky = GridRow("x", 1, 1.0, 1, 2.0, 2.1, None, None), GridRow("x", 1, 3.0, 1, 2.2, 1.9, None, None)
    (chosen,) = best([good, lucky], ADAMW)
    assert (chosen.rate, chosen.final_loss) == (1.0, 2.1)


def test_what_is_unknown_stays_unknown() -> None:
    one = grid_row(ADAMW, 1, 1.0, [with_curve("baseline", [Evaluation(step=9, loss=2.0)], cpu_s=None)])
    failed = grid_row("x", 1, 1.0, [with_curve("x", [], status="crashed")])
    assert (one.standard_error, one.cpu_s, failed.final_loss) == (None, None, None)
    assert best([one, failed], ADAMW) == [BestRate(ADAMW, 1, 1, 1.0, 2.0, None, None, None)]
    assert best([], ADAMW) == []
