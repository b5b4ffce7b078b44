"""Plans of memory: every solver answers, within the budget or with the reason, on a model that never existed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

from suite.chain.plan import budget_between, unplanned
from suite.measure.at_scale.full_size import Scale, trained_at
from suite.record.job import RecipeName, Setting
from suite.topics.memory_plan.within_budgets import Device, plan_all, solvers
from suite.topics.studies import memory_budgets
from suite.topics.studies.lab import Lab
from techniques.shared.scheduled import Scheduled

H100 = Device(4e14, 5e10)


def scale(baseline: str = "gpt", size: str = "base") -> Scale:
    return Scale(Setting(baseline=baseline, size=size, recipe="modern", device="cuda"))


@pytest.mark.parametrize(("memory_bytes", "refusing"), [(15_000_000, False), (9_250_000, True)])
def test_every_solver_keeps_within_the_memory_or_says_why_not(memory_bytes: int, refusing: bool) -> None:
    """The plain step takes 25 MB, the least that a schedule can do with 9.2 MB: not every solver finds that."""
    planned = plan_all(scale("gpt", "nano"), memory_bytes, H100)
    assert {each.technique for each in planned.answers} == set(solvers())
    assert planned.peak_bytes(planned.least) < memory_bytes < planned.peak_bytes(planned.plain)
    assert any(each.plan is None for each in planned.answers) == refusing
    for each in planned.answers:
        if each.plan is None:
            assert each.why_not
        else:
            assert planned.resident_bytes + each.plan.peak_bytes <= memory_bytes
            assert each.plan.time_s >= planned.plain.time_s
    times = [each.plan.time_s for each in planned.answers if each.plan]
    assert times == sorted(times) and times
    assert json.dumps(planned.as_dict())


@pytest.mark.parametrize(
    ("recipe", "batch", "technique"),
    [
        ("classic", 1, "baseline"),  # the optimizer's step is the peak
        ("modern", 8, "rotor:budget=0.4"),
    ],
)
def test_the_predicted_peak_is_the_counted_one_of_a_users_model(
    recipe: RecipeName, batch: int, technique: str, tmp_path: Path
) -> None:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    at = Scale(Setting(baseline="gpt", size="pico", recipe=recipe, model=str(tmp_path)), batch, 16)
    with trained_at(technique, at) as run:
        counted_bytes = run.count_step().peak_tensor_bytes
        own = [each for each in run.technique.techniques.values() if isinstance(each, Scheduled)]
        plans = [each.plan(run) for each in own]
    planned = plan_all(at, int(1e9), H100, ["rotor"])
    plan = plans[0] if plans else planned.plain
    assert planned.peak_bytes(plan) == pytest.approx(counted_bytes, rel=0.01)
    assert (planned.update_bytes > plan.peak_bytes) == (recipe == "classic")


def test_an_update_that_does_not_fit_is_refused_before_any_solver_is_asked() -> None:
    planned = plan_all(scale("gpt", "nano"), int(1e9), H100, ["revolve"])
    needed = planned.resident_bytes + planned.update_bytes
    with pytest.raises(ValueError, match=r"and the optimizer's step .* no schedule of activations helps"):
        plan_all(scale("gpt", "nano"), needed - 1, H100, ["revolve"])


def test_plenty_of_memory_needs_no_schedule() -> None:
    planned = plan_all(scale("mae", "nano"), int(1e12), H100, ["ckpt_chen_sqrt"])
    assert planned.answers[0].plan == planned.plain


def test_weights_that_do_not_fit_and_techniques_that_plan_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no schedule of activations helps"):
        plan_all(scale(), int(1e9), H100)
    with pytest.raises(ValueError, match=r"lion plans no schedule; those that do: .*ckpt_chen_sqrt"):
        plan_all(scale(), int(1e10), H100, ["lion"])


def test_the_study_of_budgets_executes_what_it_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budgets, "SHARES", (0.5, 1.0))
    monkeypatch.setattr(memory_budgets, "PASSES", 1)
    (table,) = memory_budgets.study(Lab(Setting(baseline="mae", size="pico", steps=4), tmp_path, 1, 1))
    rows = [memory_budgets.BudgetRow(*row) for row in table.rows]
    assert {row.technique for row in rows} == set(solvers())
    for row in rows:
        if row.predicted_peak_bytes is not None and not row.moved_bytes:
            assert row.predicted_peak_bytes == row.measured_peak_bytes <= row.budget_bytes
    assert memory_budgets.plot([table]).axes


def test_a_budget_is_a_share_of_the_way_from_the_least_peak() -> None:
    chains = plan_all(scale("gpt", "nano"), int(1e12), H100, ["ckpt_chen_sqrt"]).chains
    assert budget_between(chains, 1.0) == unplanned(chains).peak_bytes
    assert budget_between(chains, 0.0) < budget_between(chains, 0.3)
