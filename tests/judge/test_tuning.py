"""Both sides get one grid of learning rates, and the rate that validation data chose."""

from __future__ import annotations

import math

from suite.contract.catalogue import catalogue, lookup
from suite.judge.claims import verdicts
from suite.judge.rows import Row, pairs
from suite.judge.tuning import RATES, best_rate
from suite.record.schema import Evaluation, Learned, Line
from tests.factories import STEPS, claim, conditions, installed, learned, records, ruler_runs, timings


def at(rate: float, stack: str = "baseline", seed: int = 0, validation: float = 2.0, test: float = 2.0) -> Learned:
    return learned(
        stack, seed, final=test, conditions=conditions(rate=rate), id=f"{stack} {rate} {seed}",
        curve=[Evaluation(step=0, loss=4.0), Evaluation(step=STEPS, loss=validation)],
    )  # fmt: skip


def row(lines: list[Line], tuned: bool = True) -> Row:
    rows = pairs(records(lines), lambda stack: "baseline", installed, lambda stack: tuned)
    return next(each for each in rows if each.stack == "lion" and each.conditions.rate == 1)


def test_the_best_rate_is_that_of_the_least_validation_loss_once_the_grid_is_complete() -> None:
    low, own, high = (at(rate, validation=loss) for rate, loss in zip(RATES, (2.2, 2.1, 1.9), strict=True))
    assert best_rate({RATES[0]: low, RATES[1]: own}) is None
    assert best_rate({RATES[0]: low, RATES[1]: own, RATES[2]: high}) == RATES[2]


def test_a_rate_that_diverges_is_never_chosen() -> None:
    broken = at(RATES[2], validation=1.0).model_copy(update={"status": "diverged"})
    assert best_rate({RATES[0]: at(RATES[0], validation=2.2), RATES[1]: at(RATES[1]), RATES[2]: broken}) == RATES[1]


def grids(validation: dict[str, tuple[float, ...]]) -> list[Line]:
    return [
        at(rate, stack, seed, loss, test=loss + 0.1)
        for stack, losses in validation.items()
        for rate, loss in zip(RATES, losses, strict=True)
        for seed in range(3)
    ]


def test_a_tuned_row_has_each_side_at_its_own_best_rate_and_says_so() -> None:
    lines: list[Line] = [*grids({"baseline": (2.1, 2.0, 2.3), "lion": (2.2, 2.1, 1.9)}), *timings("lion")]
    tuned = row(lines)
    assert tuned.rates == (1.0, RATES[2])
    assert math.isclose(tuned.value("loss").number, 2.0 / 2.1)
    assert any("the best may lie beyond the grid" in note for note in tuned.notes)
    fixed = row(lines, tuned=False)
    assert fixed.rates is None and math.isclose(fixed.value("loss").number, 2.2 / 2.1)


def test_a_tuned_row_is_read_off_the_reference_s_curve_at_its_tuned_rate() -> None:
    """The same runs on both sides are worth the same budget, however much better the tuned rate is than the other."""
    same = {"baseline": (2.3, 2.0, 1.5), "lion": (2.3, 2.0, 1.5)}
    lines: list[Line] = [*grids(same), *ruler_runs(3, final=2.1), *timings("lion")]
    alone = row(lines)
    assert alone.rates == (RATES[2], RATES[2])
    assert alone.value("equivalent_budget").kind == "unavailable", "the curve at the default rate says nothing of it"
    tuned = row([*lines, *ruler_runs(3, final=1.6, rate=RATES[2])])
    assert math.isclose(tuned.value("equivalent_budget").number, 1.0, abs_tol=0.02)  # as the curve's own noise is
    assert row(lines, tuned=False).value("equivalent_budget").kind == "measured"


def test_a_row_whose_grid_is_not_complete_stays_at_its_own_rate_and_says_so() -> None:
    lines: list[Line] = [
        *(each for each in grids({"baseline": (2.1, 2.0, 2.3), "lion": (2.2, 2.1, 1.9)})
          if isinstance(each, Learned) and each.conditions.rate != RATES[2]),
        *timings("lion"),
    ]  # fmt: skip
    waiting = row(lines)
    assert waiting.rates is None and "its learning rate is not tuned yet" in waiting.notes


def test_claims_of_quality_wait_for_the_tuning_that_a_card_asks_for() -> None:
    lines: list[Line] = [at(1.0, stack, seed, test=loss) for stack, loss in (("baseline", 2.0), ("lion", 3.0))
                         for seed in range(3)]  # fmt: skip
    lion = lookup("technique", "lion", catalogue()).card
    about = lion.model_copy(update={"claim": (claim(metric="loss", expected=1.0),), "baselines": ("gpt",)})
    (untuned,) = verdicts([row([*lines, *timings("lion")])], [about])
    assert (untuned.verdict, "not tuned" in untuned.reason) == ("not testable here", True)
    (fixed,) = verdicts([row([*lines, *timings("lion")], tuned=False)], [about])
    assert fixed.verdict == "contradicted"


def test_what_test_data_say_chooses_nothing() -> None:
    lines: list[Line] = [
        at(rate, stack, validation=validation, test=test)
        for stack in ("baseline", "lion")
        for rate, validation, test in zip(RATES, (2.2, 1.9, 2.1), (1.0, 2.0, 1.0), strict=True)
    ]
    assert row([*lines, *timings("lion")]).rates == (1.0, 1.0)
