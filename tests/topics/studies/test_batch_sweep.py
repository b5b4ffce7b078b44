"""The sweep of an optimizer over batch sizes: same grid for every side, the best of each, nothing where nothing ran."""

import math
import re
from collections import Counter
from types import SimpleNamespace

import pytest

from suite.entries.card import BatchSweep
from suite.entries.catalogue import catalogue
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.record.job import canonical
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.batch_sweep import REFERENCE, SweepRow, SweepRun, best, plot, steps_to, study, sweep_row
from tests.factories import with_curve

LARS, LAMB = (catalogue()[id].card.study for id in ("lars", "lamb"))
assert isinstance(LARS, BatchSweep) and isinstance(LAMB, BatchSweep)
OWN = Recipe(steps=320, batch_size=8, learning_rate=1e-3)


def run_of(stack: str, critical: int) -> Learned:
    """An imagined run: progress a step goes with the rate, until that exceeds what the batch, or the critical one,
    allows."""
    k = int(match[1]) if (match := re.search(r"k=(\d+)", stack)) else 1 if "scaling" not in stack else 4
    rate = float(match[1]) if (match := re.search(r"rate=([\d.]+)", stack)) else 1.0
    gain = math.sqrt(k) * rate
    status = "diverged" if gain > min(k, critical) else "ok"
    steps = 1280 // k
    curve = [Evaluation(step=step, loss=4 * math.exp(-step * gain / 320)) for step in range(0, steps + 1, 2)]
    if status != "ok":
        curve = curve[:2]
    recipe = {"batch_size": 8 * k, "learning_rate": 1e-3 * gain, "steps": steps}
    return with_curve(stack, curve, recipe=recipe, status=status, cpu_s=3.0)


def lab(asked: list[str], nothing: bool = False) -> SimpleNamespace:
    def runs(stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        asked.extend(stacks)
        return {
            canonical(stack): []
            if nothing
            else [(run_of("", 4), run_of(canonical(stack), 64 if "lamb" in stack else 4))] * 2
            for stack in stacks
        }

    return SimpleNamespace(runs=runs)


def test_every_side_gets_the_same_grid_about_its_own_rate() -> None:
    asked: list[str] = []
    study(lab(asked), LARS)  # type: ignore[arg-type]
    grid = Counter((k, round(k**0.5 * rate, 6)) for k in LARS.batches for rate in LARS.rates)
    for side in ("", "+lars", "+nesterov_agd"):
        recipes = [build(each).recipe(OWN) for each in asked if each.partition("+")[2] == side.removeprefix("+")]
        own = build(side.removeprefix("+") or "baseline").recipe(OWN).learning_rate
        assert {recipe.steps * recipe.batch_size for recipe in recipes} == {320 * 8}
        assert Counter((each.batch_size // 8, round(each.learning_rate / own, 6)) for each in recipes) == grid
    assert len(asked) == 3 * grid.total()


def test_the_best_rate_of_each_batch_is_found() -> None:
    tables = study(lab([]), LAMB)  # type: ignore[arg-type]
    everything, chosen, cost = tables
    assert len(everything.rows) == 2 * len(LAMB.batches) * len(LAMB.rates)
    rows = {(name, (row := SweepRow(*cells)).batch_size): (rate, row) for name, rate, *cells in chosen.rows}
    assert [rows["lamb", 8 * k][0] for k in LAMB.batches] == [1.0, 2.0, 4.0]
    start = rows["lamb", 8][1].examples_to_quality
    assert rows["lamb", 128][1].examples_to_quality == pytest.approx(start, rel=0.05)  # perfect scaling
    assert rows[REFERENCE, 128][1].steps_to_quality is None  # its critical batch is 32
    assert cost.rows == [("lamb", 15, 30, 90.0), (REFERENCE, 15, 30, 90.0)]
    axes = plot(tables).axes[0]
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["lamb", "reference", "perfect"]


def test_reaching_the_quality_counts_before_speed_and_loss() -> None:
    def run(rate: float, reached: int, steps: float | None, loss: float | None) -> SweepRun:
        return SweepRun("x", rate, SweepRow(8, "sqrt", 1.0, 2, reached, steps, None, None, 1.0, None, None, None, loss))

    unsure, sure, never, failed = run(1, 1, 5.0, 1.0), run(2, 2, 9.0, 1.2), run(3, 0, None, 0.9), run(4, 0, None, None)
    assert [best(each)[0].rate for each in ([unsure, never, sure], [failed, never])] == [2, 3]


def test_without_runs_the_tables_are_empty() -> None:
    tables = study(lab([], nothing=True), LAMB)  # type: ignore[arg-type]
    assert [each.rows for each in tables] == [[], [], []]
    plot(tables)


def test_a_failed_run_is_not_reached_and_has_no_final_loss() -> None:
    failed = with_curve("imagined", [], status="diverged", recipe={"batch_size": 16, "learning_rate": 1.0})
    row = sweep_row("linear", [(run_of("", 4), failed)])
    assert row is not None
    assert (row.reached, row.steps_to_quality, row.final_loss) == (0, None, None)
    assert sweep_row("linear", []) is None


def test_steps_to_quality_interpolates() -> None:
    curve = [Evaluation(step=0, loss=4.0), Evaluation(step=10, loss=2.0), Evaluation(step=20, loss=1.0)]
    assert steps_to(1.5, curve) == 15
    assert steps_to(5.0, curve) == 0
    assert steps_to(0.5, curve) is None
