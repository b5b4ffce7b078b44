"""Short runs under the rule for large batches, its other rules, and the study."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.recipe import Recipe
from suite.record.job import canonical
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.batch_sweep import SweepRow, sweep_row
from techniques.large_batch.linear_scaling_warmup.study import FACTORS, break_points, plot, study
from techniques.large_batch.linear_scaling_warmup.technique import LinearScalingWarmup
from tests.factories import with_curve

PAPER = Recipe(steps=900, batch_size=256, learning_rate=0.1, schedule="constant", warmup_fraction=0.0)
OWN = Recipe(steps=160, batch_size=8, learning_rate=2e-3, schedule="cosine", warmup_fraction=0.1)


@pytest.mark.parametrize("reference", [replace(PAPER, steps=120), replace(OWN, steps=120)])
@pytest.mark.parametrize("k", FACTORS)
def test_a_short_run_too_starts_at_the_base_rate(reference: Recipe, k: int) -> None:
    first = LinearScalingWarmup(k=k, rate=0.3).recipe(reference).learning_rate_at(0)
    assert 0 < first <= 0.3 * reference.learning_rate * (1 + 1e-12)


@given(k=st.integers(1, 64), steps=st.integers(1, 2000))
def test_sees_as_many_examples_in_a_kth_of_the_updates(k: int, steps: int) -> None:
    reference = Recipe(steps=steps, batch_size=8, learning_rate=1e-3)
    recipe = LinearScalingWarmup(k=k).recipe(reference)
    assert recipe.steps == math.ceil(steps / k)
    assert 0 <= recipe.steps * recipe.batch_size - steps * 8 < recipe.batch_size


@pytest.mark.parametrize(("rule", "factor"), [("linear", 16), ("sqrt", 4), ("none", 1)])
def test_rules(rule: str, factor: float) -> None:
    recipe = LinearScalingWarmup(k=16, rule=rule).recipe(OWN)  # type: ignore[arg-type]
    assert recipe.learning_rate == pytest.approx(factor * OWN.learning_rate)
    assert max(map(recipe.learning_rate_at, range(recipe.steps))) <= recipe.learning_rate


# the study ----------------------------------------------------------------------------------------------------------


def run_with(batch_size: int, critical: int, status: str = "ok") -> Learned:
    """An imagined run whose progress a step grows with the batch up to the critical one."""
    steps, gain = 1280 // batch_size, min(batch_size, critical) / 8
    curve = [Evaluation(step=step, loss=4 * math.exp(-step * gain / 40)) for step in range(0, steps + 1, 2)]
    recipe = {"batch_size": batch_size, "learning_rate": 1e-3, "steps": steps}
    return with_curve("imagined", curve, recipe=recipe, status=status)


def imagined_lab(critical: int) -> SimpleNamespace:
    def runs(stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        factors = {canonical(stack): int(re.search(r"k=(\d+)", stack)[1]) for stack in stacks}  # type: ignore[index]
        return {
            stack: [(run_with(8, critical), run_with(8 * k, critical))] * 2 if "sqrt" not in stack else []
            for stack, k in factors.items()
        }

    return SimpleNamespace(runs=runs)


def test_study_finds_the_critical_batch_and_names_what_was_not_reached() -> None:
    tables = study(imagined_lab(critical=32))  # type: ignore[arg-type]
    rows = {(row.batch_size, row.rule): row for row in (SweepRow(*each) for each in tables[0].rows)}
    assert list(rows) == [(8, "reference"), *((8 * k, rule) for k in FACTORS for rule in ("linear", "none"))]
    start = rows[8, "reference"].examples_to_quality
    assert [rows[size, "linear"].examples_to_quality for size in (16, 32)] == pytest.approx([start] * 2, rel=0.05)
    assert rows[128, "linear"].steps_to_quality is None
    assert (rows[128, "linear"].reached, rows[128, "linear"].seeds) == (0, 2)
    assert [(rule, held, broken) for rule, _, _, held, broken in tables[1].rows] == [
        ("linear", 32, 64),
        ("none", 32, 64),
    ]
    half_way = {size: row.steps_half_way for (size, rule), row in rows.items() if rule in ("reference", "linear")}
    assert half_way[32] == pytest.approx(rows[8, "reference"].steps_half_way / 4, rel=0.05)  # type: ignore[operator]
    assert [size for size, steps in half_way.items() if steps is None] == [256]
    steps, losses = plot(tables).axes
    (missed,) = (line for line in steps.lines if line.get_label() == "rule: linear: not reached")
    assert list(missed.get_xdata()) == [256]
    assert len(losses.lines) == len(losses.collections) == 3


def test_the_break_point_is_judged_by_the_interval_over_seeds() -> None:
    reference = [run_with(8, 8), run_with(8, 7)]
    start = sweep_row("reference", [(each, each) for each in reference])
    assert start is not None and start.final_loss_low is not None and start.final_loss_high is not None
    assert start.final_loss_low < min(each.curve[-1].loss for each in reference)
    losses = {16: start.final_loss_high, 32: start.final_loss_high * 1.001, 64: None}
    rows = [start, *(start._replace(rule="sqrt", batch_size=size, final_loss=loss) for size, loss in losses.items())]
    (point,) = break_points(rows)
    assert point == ("sqrt", start.final_loss_low, start.final_loss_high, 16, 32)
    assert break_points([start._replace(final_loss_low=None)]) == []  # one seed
