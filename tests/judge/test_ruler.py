"""The reference's scaling curve: what it recovers, where it ends, and whether intervals read off it cover the truth."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.judge.known import Known, LearnedPair, TimedPair
from suite.judge.metrics import METRICS, MetricValue, priors
from suite.judge.ruler import BUDGETS, LEAST_SLOPE, Ruler, ruler_of, steps_at
from suite.judge.statistics import Floats, detectable_effect
from suite.record.schema import Evaluation, Learned, Side
from tests.factories import CODE, STEPS, learned, ruler_runs

LOG_BUDGETS = np.log(BUDGETS)
OWN = BUDGETS.index(1.0)


def log_loss(log_budget: Floats | float, bend: float = 0.02) -> Floats:
    """The truth: a power law of GPT's slope, and a bend as ViT's."""
    x = np.asarray(log_budget, dtype=np.float64)
    curve: Floats = math.log(2.0) - 0.2 * x + bend * x**2
    return curve


def exact(bend: float = 0.0) -> Ruler:
    return Ruler(BUDGETS, np.exp(log_loss(LOG_BUDGETS, bend))[None])


inside = st.floats(min(BUDGETS), max(BUDGETS)).map(math.log)


@given(inside)
def test_a_power_law_is_recovered_to_rounding(log_budget: float) -> None:
    assert exact().log_budget(math.exp(log_loss(log_budget, 0.0))) == pytest.approx(log_budget, abs=1e-9)
    assert exact().log_loss(log_budget) == pytest.approx(log_loss(log_budget, 0.0), abs=1e-9)


@given(inside)
def test_a_bent_curve_is_recovered_within_what_its_budgets_resolve(log_budget: float) -> None:
    """Half a percent of budget; straight lines between the budgets would be off by twice that."""
    assert exact(0.02).log_budget(math.exp(log_loss(log_budget, 0.02))) == pytest.approx(log_budget, abs=0.005)


noisy_tables = st.lists(
    st.lists(st.floats(0.1, 10), min_size=len(BUDGETS), max_size=len(BUDGETS)), min_size=1, max_size=4
).map(np.array)


@given(noisy_tables, st.floats(0.05, 20), st.floats(1.0, 1.5))
def test_a_lower_loss_is_never_worth_less_however_noisy_the_curve(table: Floats, loss: float, more: float) -> None:
    ruler = Ruler(BUDGETS, table)
    assert (np.diff(ruler.log_losses) < 0).all()
    assert ruler.log_budget(loss) >= ruler.log_budget(loss * more) - 1e-12


@given(noisy_tables, st.floats(0, 1))
def test_a_loss_of_the_curve_reads_back_as_its_budget(table: Floats, place: float) -> None:
    """Exactly at the budgets. Between them the curve and its inverse are interpolated apart, within their interval."""
    ruler = Ruler(BUDGETS, table)
    for log_budget, x in zip(LOG_BUDGETS, ruler.log_losses, strict=True):
        assert ruler.log_budget(math.exp(x)) == pytest.approx(log_budget, abs=1e-6)
        assert ruler.log_loss(log_budget) == pytest.approx(x, abs=1e-9)
    at = float(LOG_BUDGETS[0] + place * (LOG_BUDGETS[-1] - LOG_BUDGETS[0]))
    back = ruler.log_budget(math.exp(ruler.log_loss(at)))
    part = min(int(np.searchsorted(LOG_BUDGETS, at, side="right")), len(BUDGETS) - 1)
    assert LOG_BUDGETS[part - 1] - 1e-6 <= back <= LOG_BUDGETS[part] + 1e-6


def test_ties_are_separated_and_nothing_else_is_moved() -> None:
    flat = np.exp(log_loss(LOG_BUDGETS, 0.0))
    flat[3] = flat[2] * 1.01  # noise: out of order with the one before
    losses = Ruler(BUDGETS, flat[None]).log_losses
    np.testing.assert_allclose(np.delete(losses, [2, 3]), np.log(np.delete(flat, [2, 3])))
    pooled = np.log(flat[2:4]).mean()
    assert losses[2] == pytest.approx(pooled)
    assert losses[3] == pytest.approx(pooled - LEAST_SLOPE * math.log(BUDGETS[3] / BUDGETS[2]))


def test_beyond_the_ends_the_curve_s_slope_goes_on_and_says_so() -> None:
    ruler = exact()
    for log_budget, side in ((math.log(0.1), -1), (0.0, 0), (math.log(9.0), 1)):
        loss = math.exp(log_loss(log_budget, 0.0))
        assert ruler.beyond([loss]) == side
        assert ruler.log_budget(loss) == pytest.approx(log_budget)
    assert ruler.ends == (BUDGETS[0], BUDGETS[-1])
    at_ends = [math.exp(each) for each in ruler.log_losses[[0, -1]]]
    assert [ruler.beyond([loss * change]) for loss, change in zip(at_ends, (0.999, 1.001), strict=True)] == [0, 0]
    one_in_three = [at_ends[1] * 0.99, at_ends[1] * 1.01, at_ends[1] * 1.01]
    assert ruler.beyond(one_in_three) == 0  # the mean decides, or noise would


@given(noisy_tables, st.lists(st.floats(0.05, 20), min_size=1, max_size=5))
def test_equal_losses_are_worth_exactly_the_same(table: Floats, losses: list[float]) -> None:
    ruler = Ruler(BUDGETS, table)
    assert (ruler.log_budget_ratios(losses, losses) == 0).all()
    assert ruler.uncertainty(losses, losses) == 0


@given(st.integers(0, 2**32 - 1))
def test_a_seed_that_is_missing_at_a_budget_shifts_nothing(seed: int) -> None:
    """Levels of the seeds add up with the curve; any runs may be missing while each budget shares seeds with others."""
    rng = np.random.default_rng(seed)
    table = np.exp(log_loss(LOG_BUDGETS)[None] + 0.1 * rng.standard_normal((4, 1)))
    gaps = rng.random(table.shape) < 0.4
    gaps[0] = False  # one seed has all
    gaps[np.arange(4), rng.integers(len(BUDGETS), size=4)] = False  # and each has one
    np.testing.assert_allclose(
        np.diff(Ruler(BUDGETS, np.where(gaps, math.nan, table)).log_losses), np.diff(Ruler(BUDGETS, table).log_losses)
    )
    level = np.log(table[:, OWN]).mean()
    assert Ruler(BUDGETS, np.where(gaps, math.nan, table)).log_losses[OWN] == pytest.approx(level)


def test_a_curve_is_of_the_runs_that_finished_at_three_budgets_or_more() -> None:
    runs = ruler_runs(seeds=2)
    ruler = ruler_of(runs, STEPS)
    assert ruler is not None and ruler.budgets == BUDGETS and ruler.machine == runs[0].machine.name
    assert ruler.losses.shape == (2, len(BUDGETS))
    crashed = runs[0].model_copy(update={"status": "crashed"})
    gap = ruler_of([crashed, *runs[1:]], STEPS)
    assert gap is not None and np.isnan(gap.losses[0, 0]) and np.isnan(gap.losses).sum() == 1
    assert ruler_of([each for each in runs if each.conditions.steps <= steps_at(0.5, STEPS)], STEPS) is None
    assert ruler_of([each for each in runs if each.conditions.steps != STEPS], STEPS) is None


# coverage by simulation ---------------------------------------------------------------------------------------------


def test_a_flat_end_of_a_noisy_curve_makes_no_seed_worth_a_thousand_budgets() -> None:
    noisy = np.exp(log_loss(LOG_BUDGETS, 0.0))
    noisy[-1] = noisy[-2]
    ruler = Ruler(BUDGETS, noisy[None])
    better, worse = ruler.log_budget_ratios([noisy[3], noisy[3]], [0.9 * noisy[-1], 1.1 * noisy[0]])
    assert 0 < better - ruler.log_budgets[-1] < 1 and -1 < worse - ruler.log_budgets[0] < 0


SEED_NOISE = 0.004  # of the ln final loss: 2 % of budget on a curve of slope 0.2
PROCESS_NOISE = 0.005  # of the ln time


ANY_RUN = learned()


def run_of(seed: int, loss: float) -> Learned:
    return ANY_RUN.model_copy(update={"seed": seed, "final": Evaluation(step=STEPS, loss=loss)})


def timing(replicate: int, log_ratio: float) -> TimedPair:
    side = Side(stack="x", code=CODE, steps=STEPS)
    return TimedPair(
        replicate=replicate,
        record=f"{replicate}",
        processor="",
        threads=1,
        reference=side,
        contender=side,
        progress=(0.0,),
        window_log_ratios=(np.array([log_ratio]),),
        reference_step_s=0.02,
        setup_cost=0.0,
    )


def board(
    rng: np.random.Generator,
    rows: int,
    *,
    paired: bool,
    share: float = 1.0,
    cost: float = 1.0,
    seeds: int = 3,
    ruler_seeds: int = 3,
) -> list[Known]:
    """Rows that share a reference and its curve. Each technique ends where the reference does with ``share`` of its
    budget and takes ``cost`` of its time. ``paired``: a seed's luck is the reference's; else the technique's own."""
    level = SEED_NOISE * rng.standard_normal(max(seeds, ruler_seeds))
    luck = SEED_NOISE / 2 * rng.standard_normal((len(level), len(BUDGETS)))
    table = np.exp(log_loss(LOG_BUDGETS)[None] + level[:, None] + luck)
    ruler = Ruler(BUDGETS, table[:ruler_seeds])
    known = []
    for _ in range(rows):
        own = level[:seeds] if paired else SEED_NOISE * rng.standard_normal(seeds)
        losses = np.exp(log_loss(math.log(share)) + own + SEED_NOISE / 2 * rng.standard_normal(seeds))
        pairs = [
            LearnedPair(run_of(seed, float(table[seed, OWN])), run_of(seed, float(losses[seed])))
            for seed in range(seeds)
        ]
        times = [timing(each, math.log(cost) + PROCESS_NOISE * rng.standard_normal()) for each in range(3)]
        known.append(Known(learned=pairs, timed=times, ruler=ruler))
    return known


def headlines(known: Sequence[Known], metric: str = "time_to_quality") -> list[MetricValue]:
    shared = priors(known)
    return [METRICS[metric].value(each, shared) for each in known]


def simulated(rows: int, boards: int, seed: int, **truth: float | bool) -> list[MetricValue]:
    rng = np.random.default_rng(seed)
    return [each for _ in range(boards) for each in headlines(board(rng, rows, **truth))]  # type: ignore[arg-type]


def covered(values: Sequence[MetricValue], truth: float) -> int:
    return sum(each.interval is not None and each.interval.contains(truth) for each in values)


def at_least(count: int, trials: int, rate: float) -> bool:
    """Whether ``count`` is compatible with a true rate of at least ``rate`` (exact, one error in a thousand)."""
    return bool(stats.binomtest(count, trials, rate, alternative="less").pvalue > 1e-3)


@pytest.mark.parametrize("paired", [True, False])
def test_the_same_code_twice_is_told_apart_as_often_as_promised(paired: bool) -> None:
    """Rows of one board share their reference's luck, so there are sixty boards of ten rows."""
    values = simulated(10, 60, 1, paired=paired)
    assert abs(covered(values, 1.0) / len(values) - 0.95) < 0.03
    assert np.mean([each.log.estimate for each in values if each.log]) == pytest.approx(0, abs=0.004)


@pytest.mark.parametrize(("share", "paired"), [(0.5, False), (0.8, True), (2.0, True)])
def test_a_planted_change_of_the_loss_is_covered_as_the_budget_that_it_is_worth(share: float, paired: bool) -> None:
    values = simulated(10, 30, round(100 * share), paired=paired, share=share, cost=1.3)
    assert {each.kind for each in values} == {"measured"}
    assert at_least(covered(values, 1.3 / share), len(values), 0.95)
    assert np.mean([each.log.estimate for each in values if each.log]) == pytest.approx(math.log(1.3 / share), abs=0.01)


def test_beyond_the_curve_the_bound_holds() -> None:
    for share, at_most in ((0.2, False), (4.0, True)):
        for each in simulated(5, 10, 3, paired=False, share=share, cost=1.3):
            assert (each.kind, each.at_most) == ("bound", at_most)
            assert (each.number >= 1.3 / share) if at_most else (each.number <= 1.3 / share)


def test_the_jackknife_s_error_is_that_of_the_curve() -> None:
    """Of the difference between two fixed losses, read off curves of ever new seeds."""
    rng = np.random.default_rng(11)
    losses = [float(np.exp(log_loss(math.log(share)))) for share in (1.0, 1.7)]
    read, claimed = [], []
    for _ in range(600):
        noise = SEED_NOISE * rng.standard_normal((5, 1)) + SEED_NOISE / 2 * rng.standard_normal((5, len(BUDGETS)))
        ruler = Ruler(BUDGETS, np.exp(log_loss(LOG_BUDGETS)[None] + noise))
        read.append(float(ruler.log_budget_ratios(losses[:1], losses[1:])[0]))
        claimed.append(ruler.uncertainty(losses[:1], losses[1:]))
        assert ruler.degrees_of_freedom == 4
    assert math.sqrt(np.mean(np.square(claimed))) == pytest.approx(np.std(read), rel=0.1)
    assert Ruler(BUDGETS, ruler.losses[:1]).uncertainty(losses[:1], losses[1:]) == 0  # one seed cannot tell


def test_a_curve_of_one_seed_says_that_its_own_error_is_not_known() -> None:
    rng = np.random.default_rng(9)
    for seeds in (1, 2):
        (value,) = headlines(board(rng, 1, paired=True, ruler_seeds=seeds))
        assert ("one seed" in value.note) == (seeds == 1)


def test_where_the_curve_is_all_the_noise_three_seeds_of_it_still_cover() -> None:
    """A technique that is the same 5 % better in every seed: its own replicates say that they are exact."""
    rng, trials, hits = np.random.default_rng(6), 400, 0
    better = 0.05
    truth = float(np.interp(float(log_loss(0.0)) - better, log_loss(np.arange(1, 0, -1e-4)), np.arange(1, 0, -1e-4)))
    for _ in range(trials):
        (known,) = board(rng, 1, paired=True)
        pairs = [
            LearnedPair(each.reference, run_of(each.seed, each.reference.final.loss * math.exp(-better)))
            for each in known.learned
            if each.reference.final
        ]
        (value,) = headlines([Known(learned=pairs, timed=known.timed, ruler=known.ruler)], "equivalent_budget")
        hits += covered([value], math.exp(-truth))
    assert at_least(hits, trials, 0.93)


def test_the_headline_sees_what_it_says_it_could_have_seen_in_four_of_five_rows() -> None:
    """80 % power: every row of the same code names an effect, and is made that much slower."""
    rng = np.random.default_rng(17)
    seen, effects = [], []
    for _ in range(45):
        same = board(rng, 10, paired=False)
        effects += (here := [detectable_effect(each.log) for each in headlines(same) if each.log])
        slower = [
            replace(each, timed=[timing(one.replicate, one.log_cost + effect) for one in each.timed])
            for each, effect in zip(same, here, strict=True)
        ]
        seen += [each.log is not None and each.log.low > 0 for each in headlines(slower)]
    assert 0.01 < np.median(effects) < 0.1
    assert np.mean(seen) == pytest.approx(0.8, abs=0.06)  # rows of a board share a reference's luck


BLOCKED = """
import sys
for name in ("torch", "scipy", "pydantic", "pandas"):
    sys.modules[name] = None
from leantrain import Ruler
assert Ruler.__module__ == "suite.judge.ruler"
del sys.modules["scipy"]
ruler = Ruler([4e9, 1e9, 2e9], [[2.0, 2.2, 2.1], [2.0, 2.2, 2.1]])
print(ruler.ends, round(ruler.budget(2.1) / 1e9, 6), round(ruler.loss(2e9), 6), ruler.beyond([1.9]))
"""


def test_the_ruler_alone_needs_no_torch_and_loads_scipy_when_it_is_read() -> None:
    """Budgets are in any unit and any order."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert done.stdout == "(1000000000.0, 4000000000.0) 2.0 2.1 1\n", done.stderr


@pytest.mark.parametrize(
    ("budgets", "losses", "why"),
    [
        ([1, 2], [3, 2], "3 budgets or more, not 2"),
        ([1, 2, 2], [3, 2, 1], "different"),
        ([0, 1, 2], [3, 2, 1], "positive"),
        ([1, 2, 4], [3, 2], r"does not go with budgets \(3,\)"),
        ([1, 2, 4], [3, 2, math.inf], "diverged"),
        ([1, 2, 4], [[3, math.nan, 1], [3, math.nan, 1]], "no seed was trained at the budget 2"),
    ],
)
def test_a_ruler_says_what_is_wrong_with_its_runs(budgets: list[float], losses: list[float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Ruler(budgets, losses)
