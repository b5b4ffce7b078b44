"""The sweep of an optimizer over batch sizes: same grid for both sides, the best of each, nothing where nothing ran."""

import math
import re
from types import SimpleNamespace

import pytest

from suite.catalogue import build
from suite.comparison import canonical
from suite.recipe import Recipe
from suite.records import Contender, Evaluation
from techniques.large_batch.batch_sweep import REFERENCE, Run, best, plot, sweep
from techniques.large_batch.lamb import study as lamb
from techniques.large_batch.lars import study as lars
from techniques.large_batch.linear_scaling_warmup.study import FACTORS


def run_of(stack: str, critical: int) -> Contender:
    """An imagined run: its progress a step grows with batch and rate up to the critical batch, and dies beyond k = 8
    at the linear rule."""
    k = int(found[1]) if (found := re.search(r"k=(\d+)", stack)) else 1 if "scaling" not in stack else 4
    rule = found[1] if (found := re.search(r"rule=(\w+)", stack)) else "linear" if "scaling" in stack else "none"
    gain = min(k, critical) ** {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[rule]
    status = "diverged" if rule == "linear" and k > 8 else "ok"
    steps = 1280 // k
    curve = [Evaluation(step=step, loss=4 * math.exp(-step * gain / 320)) for step in range(0, steps + 1, 2)]
    if status != "ok":
        curve = curve[:2]
    recipe = {"batch_size": 8 * k, "learning_rate": 1e-3 * gain, "steps": steps}
    return Contender(stack=stack, recipe=recipe, curve=curve, status=status)  # type: ignore[arg-type]


def lab(asked: list[str], nothing: bool = False) -> SimpleNamespace:
    def runs(stacks: list[str]) -> dict[str, list[tuple[Contender, Contender]]]:
        asked.extend(stacks)
        return {
            canonical(stack): []
            if nothing
            else [(run_of("", 4), run_of(canonical(stack), 64 if "lamb" in stack else 4))] * 2
            for stack in stacks
        }

    return SimpleNamespace(runs=runs)


def test_both_sides_get_the_same_grid_and_what_is_asked_can_be_built() -> None:
    asked: list[str] = []
    lars.study(lab(asked))  # type: ignore[arg-type]
    plain = {stack for stack in asked if "lars" not in stack}
    assert {stack.removesuffix("+lars") for stack in asked if stack != "lars"} == plain
    assert len(plain) == 3 * len(FACTORS)
    alone = build("lars").recipe(Recipe(steps=320, batch_size=8, learning_rate=1e-3))
    for stack in asked:
        recipe = build(stack).recipe(Recipe(steps=320, batch_size=8, learning_rate=1e-3))
        assert recipe.steps * recipe.batch_size == 320 * 8
        ratio = recipe.learning_rate / alone.learning_rate if "lars" in stack else recipe.learning_rate / 1e-3
        k = recipe.batch_size / 8
        assert any(ratio == pytest.approx(each) for each in (1, k**0.5, k)), stack


def test_the_best_rule_of_each_batch_is_found() -> None:
    all_runs, chosen = lamb.study(lab([]))  # type: ignore[arg-type]
    assert len(all_runs.rows) == 2 + 2 * 3 * len(FACTORS)
    found = {(run.optimizer, run.batch_size): run for run in (Run(*each) for each in chosen.rows)}
    assert found["lamb", 64].rule == "linear"
    assert found["lamb", 128].rule == "sqrt"  # the linear rule diverges there
    start = found["lamb", 8].examples_to_quality
    assert found["lamb", 64].examples_to_quality == pytest.approx(start, rel=0.05)  # perfect scaling
    assert found[REFERENCE, 64].steps_to_quality is None  # its critical batch is 32
    assert len(plot([all_runs, chosen]).axes[0].lines) == 3


def test_reaching_the_quality_counts_before_speed_and_loss() -> None:
    values = {"optimizer": "x", "batch_size": 8, "learning_rate": 1.0, "seeds": 2, "examples_to_quality": None}
    unsure = Run(rule="a", reached=1, steps_to_quality=5.0, final_loss=1.0, **values)  # type: ignore[arg-type]
    sure = Run(rule="b", reached=2, steps_to_quality=9.0, final_loss=1.2, **values)  # type: ignore[arg-type]
    never = Run(rule="c", reached=0, steps_to_quality=None, final_loss=0.9, **values)  # type: ignore[arg-type]
    failed = Run(rule="d", reached=0, steps_to_quality=None, final_loss=None, **values)  # type: ignore[arg-type]
    assert [best(each)[0].rule for each in ([unsure, never, sure], [failed, never])] == ["b", "c"]


def test_without_runs_the_tables_are_empty() -> None:
    tables = sweep(lab([], nothing=True), "lamb")  # type: ignore[arg-type]
    assert [each.rows for each in tables] == [[], []]
    plot(tables)
