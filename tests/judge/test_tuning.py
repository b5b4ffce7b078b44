"""Each side's learning rate is the one that validation data choose, by one search that brackets it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.entries.catalogue import catalogue, lookup
from suite.judge.claims import verdicts
from suite.judge.rows import Row, pairs
from suite.judge.tuning import RATES, SEEDS, START, Choice, Trial, chosen, lacking, losses_of
from suite.record.schema import Evaluation, Learned, Line
from tests.factories import STEPS, claim, conditions, installed, learned, records, ruler_runs, timings


def at(rate: float, seed: int = 0, validation: float = 2.0, stack: str = "baseline", test: float = 2.0) -> Learned:
    return learned(
        stack,
        seed,
        final=test,
        conditions=conditions(rate=rate),
        id=f"{stack} {rate} {seed}",
        curve=[Evaluation(step=0, loss=4.0), Evaluation(step=STEPS, loss=validation)],
    )


def row(lines: list[Line], tuned: bool = True) -> Row:
    rows = pairs(records(lines), lambda stack: "baseline", installed, lambda stack: tuned)
    return next(each for each in rows if each.stack == "lion" and each.conditions.rate == 1)


def search(loss: Callable[[float, int], float]) -> dict[Trial, float]:
    """The trials of a whole search where a rate and a seed end at ``loss``."""
    losses: dict[Trial, float] = {}
    while wanted := lacking(losses):
        losses |= {trial: loss(*trial) for trial in wanted}
    return losses


def bowl(best: float) -> Callable[[float, int], float]:
    return lambda rate, seed: 2.0 + math.log(rate / best) ** 2


@pytest.mark.parametrize("best", RATES[1:-1])
def test_the_search_brackets_the_best_wherever_it_lies(best: float) -> None:
    losses = search(bowl(best))
    assert chosen(losses) == Choice(best, True, len(losses))
    assert len(losses) <= 14
    around = [rate for rate, seed in losses if seed == SEEDS[1]]
    assert min(around) < best < max(around)


@pytest.mark.parametrize("best", [RATES[0] / 10, 10 * RATES[-1]])
def test_what_is_best_at_the_end_of_all_rates_stays_open(best: float) -> None:
    choice = chosen(search(bowl(best)))
    assert choice and not choice.settled and choice.rate in (RATES[0], RATES[-1])


LOSSES = st.floats(1.0, 9.0) | st.just(math.inf)


@given(st.dictionaries(st.tuples(st.sampled_from(RATES), st.sampled_from(SEEDS)), LOSSES), st.floats(1.0, 9.0))
def test_any_search_ends_and_takes_the_least_of_its_neighbours(told: dict[Trial, float], other: float) -> None:
    losses = search(lambda rate, seed: told.get((rate, seed), other))
    choice = chosen(losses)
    assert choice and len(losses) <= len(RATES) + 3
    first = {rate: loss for (rate, seed), loss in losses.items() if seed == SEEDS[0]}
    if choice.settled and other < math.inf:
        assert min(first) < min(first, key=lambda rate: (first[rate], rate)) < max(first)
    assert chosen({**told, **losses}) is not None, "what was tried besides does no harm"


def test_a_search_that_goes_on_has_the_best_so_far_and_none_before_its_start() -> None:
    losses = search(bowl(1.7))
    start = {trial: loss for trial, loss in losses.items() if trial in [(rate, 0) for rate in START]}
    assert chosen(start) == Choice(1.0, False, 3)
    assert chosen(dict(list(start.items())[:2])) is None


def test_a_rate_that_diverges_is_never_chosen() -> None:
    losses = losses_of({(3.0, 0): at(3.0, validation=1.0).model_copy(update={"status": "diverged"})})
    assert losses == {(3.0, 0): math.inf}
    choice = chosen(search(lambda rate, seed: math.inf if rate >= 1.7 else bowl(3.0)(rate, seed)))
    assert choice and choice.rate == 1.0


def test_a_rate_that_one_seed_flatters_is_not_chosen() -> None:
    lucky = lambda rate, seed: 1.0 if (rate, seed) == (1.7, 0) else bowl(1.0)(rate, seed) + (rate == 1.7) * 3  # noqa: E731
    choice = chosen(search(lucky))
    assert choice and choice.rate == 1.0


def searched(best: dict[str, float], seeds: int = 3, end: float = 2.0) -> list[Line]:
    """The runs of the stacks' searches, and more seeds of what they chose; test losses are 0.1 above validation."""
    lines: list[Line] = []
    for stack, rate in best.items():
        trials = search(bowl(rate)).keys() | {(rate, seed) for seed in range(seeds)}
        losses = {(at_rate, seed): bowl(rate)(at_rate, seed) - 2.0 + end for at_rate, seed in trials}
        lines += [at(*trial, loss, stack, loss + 0.1) for trial, loss in sorted(losses.items())]
    return lines


def test_a_tuned_row_has_each_side_at_its_own_best_rate_and_says_so() -> None:
    lines: list[Line] = [*searched({"baseline": 1.0}), *searched({"lion": 3.0}, end=1.9), *timings("lion")]
    tuned = row(lines)
    assert tuned.tuned and [side.rate for side in tuned.tuned] == [1.0, 3.0] and not tuned.tuning_open
    assert math.isclose(tuned.value("loss").number, 2.0 / 2.1)
    assert any("learning rate × 3, the reference's × 1" in note and "open" not in note for note in tuned.notes)
    fixed = row(lines, tuned=False)
    assert fixed.tuned is None and fixed.value("loss").number > 1


def test_a_tuned_row_is_read_off_the_reference_s_curve_at_its_tuned_rate() -> None:
    """The same runs on both sides are worth the same budget, however much better the tuned rate is than the other."""
    lines: list[Line] = [
        *searched({"baseline": 3.0, "lion": 3.0}, end=1.5),
        *ruler_runs(3, final=2.1),
        *timings("lion"),
    ]
    alone = row(lines)
    assert alone.tuned and [side.rate for side in alone.tuned] == [3.0, 3.0]
    assert alone.value("equivalent_budget").kind == "unavailable", "the curve at the default rate says nothing of it"
    tuned = row([*lines, *ruler_runs(3, final=1.6, rate=3.0)])
    assert math.isclose(tuned.value("equivalent_budget").number, 1.0, abs_tol=0.02)  # as the curve's own noise is
    assert row(lines, tuned=False).value("equivalent_budget").kind == "bound", "its loss lies beyond that curve"


def test_a_row_whose_search_has_not_ended_says_so_and_one_whose_has_not_begun_stays_at_its_own_rate() -> None:
    whole = [each for each in searched({"baseline": 1.0, "lion": 3.0}) if isinstance(each, Learned)]
    started: list[Line] = [each for each in whole if each.conditions.rate in START and each.seed == 0]
    going_on = row([*started, *timings("lion")])
    assert going_on.tuned and going_on.tuning_open
    assert any("tuning open: the reference's and its own search" in note for note in going_on.notes)
    waiting = row(
        [*(each for each in started if isinstance(each, Learned) and each.conditions.rate == 1), *timings("lion")]
    )
    assert waiting.tuned is None and waiting.tuning_open and "its learning rate is not tuned yet" in waiting.notes


def test_claims_of_quality_wait_for_the_tuning_that_a_card_asks_for() -> None:
    lines: list[Line] = [
        at(1.0, seed, stack=stack, test=loss) for stack, loss in (("baseline", 2.0), ("lion", 3.0)) for seed in range(3)
    ]
    lion = lookup("technique", "lion", catalogue()).card
    about = lion.model_copy(
        update={"claim": (claim(metric="loss", expected=1.0),), "properties": (), "baselines": ("gpt",)}
    )
    (untuned,) = verdicts([row([*lines, *timings("lion")])], [about])
    assert (untuned.outcome, "not tuned" in untuned.reason) == ("tuning open", True)
    (fixed,) = verdicts([row([*lines, *timings("lion")], tuned=False)], [about])
    assert fixed.outcome == "does not hold"


def test_a_claim_of_quality_is_not_contradicted_while_tuning_is_open() -> None:
    lion = lookup("technique", "lion", catalogue()).card
    about = lion.model_copy(
        update={"claim": (claim(metric="loss", expected=1.0),), "properties": (), "baselines": ("gpt",)}
    )
    lines: list[Line] = [*searched({"baseline": 1.0}), *searched({"lion": 3.0}, end=4.0), *timings("lion")]
    (settled,) = verdicts([row(lines)], [about])
    assert settled.outcome == "does not hold"
    last = [
        each
        for each in lines
        if not (isinstance(each, Learned) and each.stack == "lion" and each.conditions.rate == 5.5)
    ]
    (still_open,) = verdicts([row(last)], [about])
    assert (still_open.outcome, "not bracketed" in still_open.reason) == ("tuning open", True)


def test_what_test_data_say_chooses_nothing() -> None:
    lines: list[Line] = [
        at(rate, seed, loss, stack, 9.0 - loss)
        for stack in ("baseline", "lion")
        for (rate, seed), loss in search(bowl(1.0)).items()
    ]
    chose = row([*lines, *timings("lion")]).tuned
    assert chose and [side.rate for side in chose] == [1.0, 1.0]
