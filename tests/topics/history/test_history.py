"""Change points: how often noise is called one, how often a step is seen, and what a fresh comparison decides."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suite.record.schema import Code, Counted, Learned, Line, Timed
from suite.topics.history import change_points as h
from suite.topics.history.timelines import figure
from tests.factories import (
    MACHINE,
    conditions,
    counted,
    counters,
    evidence,
    learned,
    records,
    side,
    timed,
    timings,
)

N, AT, TRIALS = 40, 30, 120


def noise(kind: str, rng: np.random.Generator) -> np.ndarray:
    """A history without a change, of standard deviation 3 %."""
    if kind == "heavy tails":
        return 0.03 * rng.standard_t(3, N) / math.sqrt(3)
    x = rng.standard_normal(N + 20)
    if kind == "autocorrelated":
        for i in range(1, len(x)):
            x[i] = 0.5 * x[i - 1] + math.sqrt(1 - 0.25) * x[i]
    return 0.03 * x[20:]


def alarm_count(kind: str, step: float) -> int:
    rng = np.random.default_rng([len(kind), round(1000 * step)])
    late = step * (np.arange(N) >= AT)
    return sum(h.strongest_split(noise(kind, rng) + late, rng, 199).p_value <= 0.05 for _ in range(TRIALS))


def at_most(count: int, rate: float) -> bool:
    return stats.binomtest(count, TRIALS, rate, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize(("kind", "nominal"), [("normal", 0.05), ("heavy tails", 0.05), ("autocorrelated", 0.10)])
def test_noise_alone_is_seldom_called_a_change(kind, nominal):
    """Of autocorrelated noise twice the nominal rate: 40 points cannot tell how alike neighbours are any better.
    Without blocks it is 29 %."""
    assert at_most(alarm_count(kind, 0.0), nominal)


@pytest.mark.parametrize(("kind", "power"), [("normal", 0.85), ("autocorrelated", 0.5)])
def test_a_step_of_five_per_cent_in_noise_of_three_is_found(kind, power):
    assert at_most(TRIALS - alarm_count(kind, 0.05), 1 - power)


def test_the_statistic_is_the_standardised_rank_sum():
    x = np.random.default_rng(0).standard_normal(20)
    scores = h._scores(stats.rankdata(x))
    for k, score in zip(range(h.LEAST, 20 - h.LEAST + 1), scores, strict=True):
        assert score == pytest.approx(abs(stats.ranksums(x[:k], x[k:]).statistic))


def test_blocks_are_kept_whole_and_orders_are_permutations():
    rng = np.random.default_rng(0)
    for block in (1, 3, 7):
        orders = h._orders(20, block, 50, rng)
        assert (np.sort(orders, axis=1) == np.arange(20)).all()
        kept = ((np.diff(orders, axis=1) % 20) == 1).mean()
        assert kept > 1 - 1.5 / block - 0.1


def test_blocks_are_for_neighbours_that_are_alike():
    rng = np.random.default_rng(3)
    assert np.mean([h.block_length(noise("normal", rng)) for _ in range(50)]) < 2
    assert np.mean([h.block_length(noise("autocorrelated", rng)) for _ in range(50)]) > 3
    assert h.block_length(np.zeros(9)) == 1


def test_several_steps_are_all_placed():
    rng = np.random.default_rng(4)
    x = 0.01 * rng.standard_normal(60) + 0.1 * (np.arange(60) >= 20) - 0.05 * (np.arange(60) >= 40)
    splits = h.segments(x, 0.05, rng)
    assert [each.at for each in splits] == [20, 40]
    assert all(each.low <= each.at <= each.high for each in splits)


@settings(max_examples=30)
@given(st.lists(st.integers(-3, 3), min_size=8, max_size=30), st.floats(0.1, 10), st.floats(-5, 5))
def test_scale_and_place_of_the_ratios_do_not_matter(values, scale, place):
    x = np.array(values, dtype=float)
    ours, theirs = (h.strongest_split(each, np.random.default_rng(0), 99) for each in (x, np.round(x * scale, 6) + 0.0))
    assert ours.p_value == theirs.p_value and ours.at == theirs.at
    assert 0 < ours.p_value <= 1


# series of evidence

LATER = Code(trajectory="later", counts="later")


def past(before=0.02, after=0.024, replicates=12, **later):
    """What two revisions of one technique left, the later one at another pace."""
    old, new = (
        evidence("x", seeds=replicates, replicates=replicates, pace_s=pace, ruler=False, **changes)
        for pace, changes in ((before, {}), (after, later))
    )
    return old, [revised(each) for each in new]


def revised(line: Line) -> Line:
    """A month later, by other code of x, from a known commit."""
    changes = {
        "id": f"new{line.id}",
        "started": line.started.replace("2026-01", "2026-02"),
        "machine": MACHINE.model_copy(update={"context": {"git_commit": "c" * 40}}),
    }
    if isinstance(line, Timed):
        reference, x = line.contenders
        changes["contenders"] = [reference, x.model_copy(update={"code": LATER})]
    elif isinstance(line, Learned | Counted) and line.stack == "x":
        changes["code"] = LATER
    return line.model_copy(update=changes)


def series(*groups, **options):
    return h.series(records(*groups), **options)


def test_a_slower_revision_is_suspected_where_it_came_and_says_what_changed():
    old, new = past()
    steps, again = (h.change_points(series(*each, metrics=("step_time", "loss"))) for each in ((new, old), (old, new)))
    (change,) = steps
    assert [each.as_dict() for each in again] == [change.as_dict()], "the same evidence, the same answer"
    assert change.series.metric == "step_time" and change.at == 12
    assert math.expm1(change.shift) == pytest.approx(0.2, abs=0.02)
    assert "the code (? to cccccccc)" in change.sentence() and change.verdict == "inconclusive"
    assert change.sentence().startswith("suspected: ")
    assert not h.alarms(steps)
    json.dumps(change.as_dict(), allow_nan=False)


def test_a_worse_loss_is_suspected_by_its_seeds():
    old, new = past(after=0.02, final=2.1)
    (change,) = h.change_points(series(old, new, metrics=("step_time", "loss")))
    assert (change.series.metric, change.at) == ("loss", 12)
    assert math.expm1(change.shift) == pytest.approx(0.05, abs=0.005)


def test_an_exact_count_changes_with_certainty_after_one_value():
    old, new = past(after=0.02, replicates=2, points=[counters(peak_tensor_bytes=4 * 2**20 + 2**13)])
    (change,) = h.change_points(series(old, new))
    assert (change.series.metric, change.at, change.p_value) == ("peak_tensor_bytes", 1, 0)


def test_a_timing_of_a_run_s_beginning_alone_is_no_point_where_its_cost_changes():
    counts = [counted(), counted("x", points=[counters(flops=each) for each in (1, 2)])]
    alone = series(counts, timings("x"), metrics=("step_time",))
    assert alone == []
    (whole,) = series(counts, timings("x", windows=5), metrics=("step_time",))
    assert len(whole.points) == 3


def test_a_change_that_reads_as_none_is_not_suspected_however_sure_it_is():
    def found(more):
        of = past(after=0.02, points=[counters(peak_tensor_bytes=2**22 + more)])
        return [str(point.series.metric) for point in h.change_points(series(*of, metrics=("peak_tensor_bytes",)))]

    assert found(2**18) == ["peak_tensor_bytes"] and found(2**4) == []


def test_series_of_unchanged_code_have_no_change_points():
    old, new = past(after=0.02)
    assert h.change_points(series(old, new)) == []


def test_a_run_is_paired_with_the_reference_that_is_nearest_in_time():
    """The reference learned more later, and the technique with it: no ratio changed, and none of the past does."""
    first = [learned(seed=0), learned("x", 0, final=1.8)]
    then = [revised(each) for each in (learned(seed=0, final=1.9), learned("x", 0, final=1.71))]
    (losses,) = series(then, first, metrics=("loss",))
    np.testing.assert_allclose(losses.values, math.log(0.9))
    assert len(losses.points) == 2 and losses.points[0].revision != losses.points[1].revision
    counts = [counted(), counted("x", points=[counters(peak_tensor_bytes=2**21)])]
    both = [
        counted(points=[counters(peak_tensor_bytes=2**21)]),
        counted("x", points=[counters(peak_tensor_bytes=2**20)]),
    ]
    peaks = next(each for each in series(counts, map(revised, both)) if each.metric == "peak_tensor_bytes")
    np.testing.assert_allclose(peaks.values, -math.log(2))


def test_other_conditions_other_seeds_and_failures_make_no_points():
    other = [
        each.model_copy(update={"conditions": conditions(size="micro"), "id": f"m{each.id}"})
        for each in timings("x", 2)
    ]
    broken = timed([side(), side("x", status="crashed")], 7)
    both = series(timings("x", 3), other, [broken], metrics=("step_time",))
    assert sorted(len(each.points) for each in both) == [2, 3]
    assert "2 too short to tell (8 replicates needed, they have up to 3)" in h.summary(both, [])
    lonely = [learned(seed=0), learned("x", 1), learned("x", 0, status="diverged")]
    assert series(lonely) == [] == series([learned(seed=0), learned(seed=1)])


def test_only_the_stacks_that_are_asked_for_have_series():
    lines = [*timings("x", 2), *timings("y", 2)]
    assert {each.stack for each in series(lines)} == {"x", "y"}
    assert {each.stack for each in series(lines, stacks=["y"])} == {"y"}


# confirming


@settings(max_examples=25)
@given(st.floats(0.01, 0.3), st.integers(0, 2**32 - 1))
def test_a_verdict_is_the_interval_s(step, seed):
    rng = np.random.default_rng(seed)
    one = series(timings("x", 1), metrics=("step_time",))[0]
    before, fresh = 0.02 * rng.standard_normal(10), step * rng.integers(0, 2) + 0.02 * rng.standard_normal(5)
    change = h.ChangePoint(one, 0, 0, 0, step, 0.01, before, before + step, True)
    ends = stats.ttest_ind(fresh, before, equal_var=False).confidence_interval(0.95)
    verdict = h.judged(change, fresh).verdict
    assert (verdict == "regressed") == (ends.low > 0)
    assert (verdict == "equivalent") == (ends.low <= 0 and ends.high < step / 2)
    mirrored = h.ChangePoint(one, 0, 0, 0, -step, 0.01, -before, -before - step, True)
    assert h.judged(mirrored, -fresh).verdict == ("improved" if verdict == "regressed" else verdict)


def test_a_sentence_says_how_far_a_suspicion_has_come():
    old, new = past()
    (change,) = h.change_points(series(old, new, metrics=("step_time",)))
    before, after = float(np.median(change.before)), float(np.median(change.after))
    spread = 0.002 * np.arange(-2, 3)
    for fresh, standing, verdict in (
        (after + spread, "confirmed", "regressed"),
        (before + spread, "not confirmed", "equivalent"),
        ((before + after) / 2 + 100 * spread, "undecided", "inconclusive"),
    ):
        step = h.judged(change, fresh)
        assert (step.sentence().split(": ")[0], step.as_dict()["verdict"]) == (standing, verdict)


def test_the_plot_has_the_steps_where_they_are_and_what_changed_first(tmp_path):
    old, new = past()
    both = series(old, new, metrics=("loss", "step_time"))
    drawn = figure(both, h.change_points(both))
    assert [axes.get_title(loc="left").split(": ")[1] for axes in drawn.axes] == ["step_time", "loss"]
    places = [line.get_xdata()[0] for line in drawn.axes[0].lines if list(line.get_xdata()) == [11.5] * 2]
    assert places == [11.5]
    with pytest.raises(ValueError, match="no series"):
        figure([], [])
