"""Runs that leantrain never saw: what their losses are worth, how sure that is, and what is said against it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leantrain
from suite.cli import app
from suite.judge.statistics import replicate_interval
from suite.topics.foreign_runs import judgement_plot
from suite.topics.foreign_runs.judgement_in_words import HEAD, lines
from suite.topics.foreign_runs.run_comparison import Curve, OneLength, by_length, compared
from suite.topics.foreign_runs.run_of_log import ForeignRun
from suite.topics.published_quality.quality_rows import PublishedQuality, quality_rows


def run(budget: float, loss: float, seconds: float = math.nan, **others: Any) -> ForeignRun:
    return ForeignRun(f"{budget:g} {loss:g}", "", *(np.array([each]) for each in (budget, loss, seconds)), **others)


def law(budget: float, worth: float = 1.0) -> float:
    """A reference of which 1 % of loss is worth 5 % of budget."""
    return 3.0 * (budget * worth / 1000) ** -0.2


def frame(
    budget: int, seed: int, worth: float = 1.0, noise: float = 0.003, evaluations: int = 4, **others: Any
) -> pd.DataFrame:
    """A log: its last evaluation is of the law, with the noise of its seed."""
    own = np.random.default_rng([seed, budget, int(100 * worth)]).normal(0, noise)
    steps = np.linspace(0, budget, evaluations + 1)[1:]
    losses = law(budget, worth) * math.exp(own) * (steps / budget) ** -0.3
    return pd.DataFrame({"step": steps, "val_loss": losses, "seed": seed, "seconds": steps / 10} | others)


def frames(budgets: Sequence[int], **others: Any) -> list[pd.DataFrame]:
    return [frame(budget, seed, **others) for budget in budgets for seed in range(3)]


LENGTHS = (500, 1000, 2000)


# the answer -----------------------------------------------------------------------------------------------------------


def test_a_contender_s_loss_is_read_as_a_budget_and_its_time_is_that_budget_s() -> None:
    judgement = leantrain.judge(frames(LENGTHS), frames([1000], worth=1.3, seconds=[20, 40, 60, 80]), tuned="both")
    (reading,) = judgement.readings
    assert reading.kind == "measured" and reading.worth.low < 1.3 < reading.worth.high
    assert reading.worth.high / reading.worth.low < 1.2 and judgement.decided
    assert reading.speedup is not None  # 100 s of the reference for 1000 steps against 80
    assert reading.speedup.estimate == pytest.approx(reading.worth.estimate * 100 / 80)
    assert str(judgement).startswith("1,000 steps of the contender are worth 1,")
    assert "better; time to the same val_loss: ×1." in str(judgement)


def test_where_nothing_differs_it_says_so_and_what_would_have_shown() -> None:
    judgement = leantrain.judge(frames(LENGTHS), frames([1000], noise=0.0031))
    (reading,) = judgement.readings
    assert not judgement.decided and 1.01 < reading.detectable < 1.2
    assert "not told apart from the reference; time" in str(judgement)
    assert f"a difference of {100 * (reading.detectable - 1):.2g} % of the budget would probably have shown" in str(
        judgement
    )
    assert reading.seeds_more is None or f"about {reading.seeds_more} more runs of each side would decide" in str(
        judgement
    )


def test_with_one_length_it_is_the_ratio_of_losses_and_what_would_make_a_ruler() -> None:
    theirs, ours = frames([1000]), frames([1000], worth=1.3)
    judgement = leantrain.judge(theirs, ours)
    (reading,) = judgement.readings
    logs = [np.log([each.val_loss.iloc[-1] for each in side]) for side in (theirs, ours)]
    assert reading.kind == "loss ratio" and judgement.curve is None and reading.speedup is None
    assert reading.worth.estimate == pytest.approx(math.exp(logs[1].mean() - logs[0].mean()))
    errors = [replicate_interval(each).standard_error for each in logs]
    assert reading.log_loss_error == pytest.approx(math.hypot(*errors), rel=1e-6)
    assert reading.pace is not None and reading.pace.estimate == pytest.approx(1.0)
    assert "better; a step takes ×1.00 [1.00, 1.00] of the time; the reference trained for" in str(judgement)
    assert judgement.further == [1000 / 2, 1000 * 2]  # a loss 5 % lower is worth some 30 % of budget
    assert "trained for 500 steps and 2,000 steps, too, each to the end of its schedule, would make a ruler" in str(
        judgement
    )


def test_beyond_the_curve_its_last_piece_is_continued_a_little_and_then_the_answer_is_a_bound() -> None:
    curve = Curve([OneLength.of([run(budget, law(budget))]) for budget in LENGTHS])
    assert math.exp(curve.log_budget(math.log(law(2500)))) == pytest.approx(2500)
    assert curve.log_budget(math.log(law(3000))) == math.inf and curve.log_budget(math.log(law(300))) == -math.inf
    above = leantrain.judge(frames(LENGTHS), frames([2000], worth=1.6))
    assert above.readings[0].kind == "bound" and math.isinf(above.readings[0].worth.high) and above.decided
    assert "are worth more than 2,000 steps of the reference, where its curve ends: better" in str(above)
    far = leantrain.judge(frames(LENGTHS), frames([4000], worth=0.9))  # four times the shortest, and beyond the longest
    assert "neither better nor worse follows from that" in str(far) and not far.decided
    assert lines(above)[0][HEAD.index("worth")] == "> ×1.00"


def test_a_curve_inside_one_run_is_read_where_it_is_asked_for_and_flatters() -> None:
    theirs, ours = frames([1000], evaluations=8), frames([1000], worth=0.9, evaluations=8)
    judgement = leantrain.judge(theirs, ours, mid_schedule=True)
    assert judgement.readings[0].kind == "measured" and judgement.curve is not None and judgement.curve.within
    assert judgement.readings[0].worth.estimate == pytest.approx(
        0.9 ** (0.2 / 0.3), abs=0.03
    )  # its own course is steeper
    assert judgement.cautions[0].startswith("the curve is read inside runs whose schedule had not ended there")
    with pytest.raises(ValueError, match="--mid-schedule is for a reference of one length"):
        leantrain.judge(frames(LENGTHS), ours, mid_schedule=True)
    with pytest.raises(ValueError, match="share 1 evaluations, and a curve needs 3"):
        leantrain.judge(frames([1000], evaluations=1), ours, mid_schedule=True)


def test_a_side_of_single_runs_is_taken_to_be_as_noisy_as_the_other() -> None:
    one = leantrain.judge(frames(LENGTHS), [frame(1000, 0, worth=1.3)]).readings[0]
    three = leantrain.judge(frames(LENGTHS), frames([1000], worth=1.3)).readings[0]
    assert one.scatter == "the other side's runs" and three.scatter == "own runs"
    assert 0.5 < one.log_loss_error / (three.log_loss_error * math.sqrt((1 + 1 / 3) / (2 / 3))) < 2
    assert one.worth.degrees_of_freedom == 6  # of three lengths of three runs


def test_single_runs_on_both_sides_are_held_against_the_curve_s_own_scatter() -> None:
    """On a bent curve, which a parabola follows: noise of 0.2 % is seen as such, in the mean of many."""
    rng, seen = np.random.default_rng(0), []
    for _ in range(200):
        budgets = [1.0, 2.0, 4.0, 8.0, 16.0]
        losses = [3 * b**-0.1 * math.exp(0.01 * math.log(b) ** 2 + rng.normal(0, 0.002)) for b in budgets]
        _, (reading,) = compared([run(*pair) for pair in zip(budgets, losses)], [run(4.0, losses[2])])
        assert reading.scatter == "the curve" and reading.worth.degrees_of_freedom == 2
        seen.append(reading.log_loss_error**2)
    assert math.sqrt(np.mean(seen) / 2) == pytest.approx(0.002, rel=0.15)  # of one run against one


def test_lengths_that_differ_a_little_are_one() -> None:
    groups = by_length([run(budget, 1.0) for budget in (1000, 1015, 2000, 2000)])
    assert [length.budget for length in groups] == [pytest.approx(math.sqrt(1000 * 1015)), 2000]


def test_where_higher_is_better_what_is_judged_is_what_is_lacking() -> None:
    def accuracies(budgets: Sequence[int], **others: Any) -> list[pd.DataFrame]:
        return [
            each.assign(val_acc=1 - each.val_loss / 10).drop(columns="val_loss") for each in frames(budgets, **others)
        ]

    judgement = leantrain.judge(accuracies(LENGTHS), accuracies([1000], worth=1.3))
    loss = leantrain.judge(frames(LENGTHS), frames([1000], worth=1.3))
    assert (
        judgement.better == "higher"
        and "higher is better: what is judged is what it lacks to the most" in judgement.said
    )
    assert judgement.readings[0].worth.estimate == pytest.approx(loss.readings[0].worth.estimate, rel=1e-6)
    with pytest.raises(ValueError, match=r"contender 0 has val_acc up to .*, and reference 0 up to"):
        leantrain.judge(accuracies(LENGTHS), [each.assign(val_acc=100 * each.val_acc) for each in accuracies([1000])])
    with pytest.raises(ValueError, match="the most that there can be must be 1 or 100; name a loss"):
        leantrain.judge(frames(LENGTHS, elo=1300), frames([1000], elo=1400), loss="elo", better="higher")
    unclear = [each.rename(columns={"val_loss": "figure"}) for each in frames(LENGTHS)]
    judgement = leantrain.judge(
        unclear, [each.assign(figure=each.figure * 0.99) for each in unclear[3:6]], loss="figure"
    )
    assert judgement.cautions[0].startswith(
        "whether figure is better higher or lower its name does not say: lower is taken"
    )


# what others published ------------------------------------------------------------------------------------------------


def test_lion_on_marin_is_worth_what_its_table_says() -> None:
    """All twelve cells within 2 %, beyond the curve's ends, too: the table inverts the curve by straight lines."""
    by_model: dict[float, list[PublishedQuality]] = defaultdict(list)
    for row in quality_rows():
        if row.table == "marin_optimizers" and row.technique == "lion" and row.parameters:
            by_model[row.parameters].append(row)
    off = {}
    for parameters, cells in by_model.items():
        tokens = [2.0**power for power in range(len(cells))]  # one, two, four and eight times Chinchilla's
        reference, contender = (
            pd.DataFrame({"run": tokens, "tokens": tokens, "val_loss": losses})
            for losses in ([cell.value_reference for cell in cells], [cell.value for cell in cells])
        )
        judgement = leantrain.judge(reference, contender, tuned="both")
        for cell, reading in zip(cells, judgement.readings, strict=True):
            assert cell.budget_ratio and f"{reading.contender.budget:g}x Chinchilla" in cell.budget
            assert reading.worth.low < reading.worth.estimate < reading.worth.high
            off[parameters, cell.budget] = abs(reading.worth.estimate / cell.budget_ratio - 1)
    assert len(off) == 12 and max(off.values()) < 0.02


# cautions -------------------------------------------------------------------------------------------------------------


def cautioned(theirs: list[pd.DataFrame], ours: list[pd.DataFrame], **others: Any) -> str:
    return "\n".join(leantrain.judge(theirs, ours, **{"tuned": "both"} | others).cautions)


def test_runs_with_nothing_against_them_bring_no_caution() -> None:
    assert cautioned(frames(LENGTHS), frames([1000], worth=1.3)) == ""


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"lr": [1e-3, 1e-3, 1e-3, 5e-4]}, "reference 0 and 11 more ended with 50% of the largest learning rate"),
        ({"max_steps": 1250}, "stopped at 80 % of the planned steps"),
        ({"gpu": "A100"}, "hardware differs, H100 against A100: times compare the machines, too"),
        (
            {"batch_size": 512},
            "batch differs, 256 against 512: equal steps are not equal work; judge it in --unit tokens",
        ),
        ({"dataset": "c4"}, "data differs, fineweb against c4"),
    ],
)
def test_what_the_logs_show_is_said(ours: dict[str, Any], said: str) -> None:
    both = {"gpu": "H100", "batch_size": 256, "dataset": "fineweb"}
    of_all = ours if ours.keys() & {"lr"} else {}
    assert said in cautioned(frames(LENGTHS, **both | of_all), frames([1000], worth=1.3, **both | ours))


def test_runs_without_seeds_and_with_one_seed_are_said() -> None:
    ours = frames([1000], worth=1.3)
    said = cautioned(frames(LENGTHS), [each.drop(columns="seed") for each in ours])
    assert "the contender's runs name no seeds: those of one length are taken as of different ones" in said
    said = cautioned(frames(LENGTHS), [each.assign(seed=1) for each in ours])
    assert "3 of the contender's runs of 1000 have seed 1" in said


def test_a_run_that_was_better_before_its_end_or_looked_more_often_is_said() -> None:
    ours = [each.assign(val_loss=[9.0, 2.0, 2.1, 2.9]) for each in frames([1000])]
    ours = [each.assign(val_loss=each.val_loss + place / 1000) for place, each in enumerate(ours)]
    said = cautioned(frames(LENGTHS), ours)
    assert "was better before its end, at 500 steps: the last is judged, not the best of many" in said
    said = cautioned(frames(LENGTHS), frames([1000], worth=1.3, evaluations=20))
    assert "4 evaluations a run of the reference, 20 of the contender" in said
    best = [
        each.rename(columns={"val_loss": "best_val_loss"}) for each in (*frames(LENGTHS), *frames([1000], worth=1.3))
    ]
    assert "is the best of many checkpoints" in cautioned(best[:9], best[9:], loss="best_val_loss")


def test_unequal_lengths_one_seed_tuning_and_training_losses_are_said() -> None:
    assert "lengths differ, 1200 of the contender against 1000" in cautioned(frames([1000]), frames([1200]))
    said = cautioned([frame(1000, 0)], [frame(1000, 1)], tuned="contender")
    assert "nothing here says how much seeds differ, so there is no interval" in said
    assert "the contender is tuned and the reference is not" in said
    one = leantrain.judge([frame(1000, 0)], [frame(1000, 1)])
    assert (
        "how sure that is nothing here says" in str(one) and one.as_dict()["readings"][0]["loss_ratio"]["low"] is None
    )
    assert "say it: --tuned both" in one.cautions[-2]
    training = [
        each.rename(columns={"val_loss": "train_loss"}) for each in (*frames([1000]), *frames([1000], worth=1.1))
    ]
    assert "train_loss is of training batches: the mean over the last twentieth" in cautioned(
        training[:3], training[3:]
    )
    assert "neither side is tuned" in cautioned(frames(LENGTHS), frames([1000], worth=1.3), tuned="no")


def test_a_reference_that_more_training_does_not_help_is_said() -> None:
    flat = [
        each.assign(val_loss=each.val_loss * 1.2) if each.step.iloc[-1] == 2000 else each for each in frames(LENGTHS)
    ]
    assert "the reference ends no better after 2000 than after 1000" in cautioned(flat, frames([1000], worth=1.1))


def test_the_same_run_twice_and_two_units_of_time_are_refused() -> None:
    theirs = frames(LENGTHS)
    with pytest.raises(ValueError, match="reference 3 and contender 0 hold the same run; leave one of them out"):
        leantrain.judge(theirs, [theirs[3]])
    with pytest.raises(ValueError, match=r"takes 1,000 times as long as .*: one of them is in milliseconds"):
        leantrain.judge(theirs, frames([1000], worth=1.3, seconds=[25e3, 50e3, 75e3, 100e3]))


# the command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for side, own in (("ref", frames(LENGTHS)), ("new", frames([1000], worth=1.3))):
        (tmp_path / side).mkdir()
        for each in own:
            each.to_csv(tmp_path / side / f"{each.step.iloc[-1]:g}-{each.seed.iloc[0]}.csv", index=False)
    return tmp_path


def called(*words: str) -> Any:
    return CliRunner().invoke(app, ["judge", *words])


def test_the_command_says_columns_table_and_sentence_and_draws(logs: Path) -> None:
    sides = ("--reference", f"{logs}/ref/*.csv", "--contender", f"{logs}/new/*.csv")
    done = called(*sides, "--write", str(logs / "a.svg"), "--write", str(logs / "b.svg"), "--tuned", "both")
    shown = done.stdout.splitlines()
    assert done.exit_code == 0, done.output
    assert shown[0] == "read as step: step; seconds: seconds; seed: seed; loss: val_loss"
    assert shown[1] == "\t".join(HEAD) and shown[2].startswith("1,000 steps\t3 + 3\t")
    assert shown[3].startswith("1,000 steps of the contender are worth") and len(shown) == 4
    assert "mean reference" in (logs / "b.svg").read_text() and "span better" in (logs / "b.svg").read_text()
    told = json.loads(called(*sides, "--json").stdout)
    assert told["readings"][0]["equivalent_budget"]["low"] > 1 and told["sentence"] == shown[3]
    assert told["cautions"] == [
        "whether both sides were tuned alike no log says; say it: --tuned both, contender or no"
    ]


def test_the_command_ends_with_3_where_nothing_is_decided_and_with_2_before_it_reads_what_is_wrong(logs: Path) -> None:
    frame(1000, 9).to_csv(logs / "same.csv", index=False)
    undecided = called("--reference", f"{logs}/ref/*.csv", "--contender", str(logs / "same.csv"))
    assert undecided.exit_code == 3
    (logs / "bad.csv").write_text("step,val_loss\n1,2\n1,3\n")
    wrong = called("--reference", f"{logs}/ref/*.csv", "--contender", str(logs / "bad.csv"), "--json")
    assert wrong.exit_code == 2 and "bad.csv, line 3" in json.loads(wrong.stdout)["error"]
    assert called("--reference", "x", "--contender", "y", "--write", "a.gif").exit_code == 2
    assert "step:(?P<step>" in called("--help").stdout


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--unit", "token"), "no unit is called 'token'; did you mean tokens?"),
        (("--better", "more"), "no direction is called 'more'"),
        (("--tuned", "contendr"), "no tuning is called 'contendr'; did you mean contender?"),
        (("--preset", "nanchat"), "no preset is called 'nanchat'; did you mean nanochat?"),
        (("--step", "iteration"), "--step iteration: "),
    ],
)
def test_a_word_that_means_nothing_is_said(logs: Path, option: tuple[str, str], said: str) -> None:
    done = called("--reference", f"{logs}/ref/*.csv", "--contender", f"{logs}/new/*.csv", *option)
    assert (done.exit_code, done.stdout) == (2, "") and said in " ".join(done.stderr.split())


def test_every_kind_of_answer_can_be_drawn() -> None:
    for ours in (frames([1000], worth=1.3), frames([2000], worth=1.6), frames([500], worth=0.9)):
        assert judgement_plot.drawing(leantrain.judge(frames(LENGTHS), ours)).svg()
    assert judgement_plot.drawing(leantrain.judge(frames([1000]), frames([1000], worth=0.9))).svg()
    drawn = judgement_plot.drawing(leantrain.judge(frames(LENGTHS), frames([2000], worth=1.6))).svg()
    assert all(f">{length}</text>" in drawn for length in ("500", "1,000", "2,000"))
    assert "open better" in drawn and "open worse" not in drawn  # a bound is coloured as what it says


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import leantrain, pandas
def run(steps, seed, gain=0.0):
    return pandas.DataFrame({"step": [steps], "val_loss": [2 + 30 / steps**0.5 + seed / 500 - gain], "seed": seed})
print(leantrain.judge([run(s, k) for s in (500, 1000, 2000) for k in range(3)], [run(1000, k, 0.1) for k in range(3)]))
"""


def test_judging_loads_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.stdout.startswith("1,000 steps of the contender are worth 1,2"), done.stderr
