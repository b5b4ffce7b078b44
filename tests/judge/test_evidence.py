"""One index of evidence: what the plan holds for known, the board shows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries.sources import code_of
from suite.judge.rows import Row, pairs
from suite.judge.tuning import RATES, START
from suite.measure.missing import CampaignPlan, Pair, Wanted
from suite.measure.provenance import conditions_of
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.numerics import NATIVE, off_the_clock
from suite.record.schema import FIFTHS, Code, Evaluation, Line, Status
from suite.record.store import Records
from tests import factories

GPT = Setting(baseline="gpt", size="pico", steps=20)
LION = Pair(GPT, "lion")
HERE, THERE = fingerprint("cpu", 1), factories.MACHINE
OLD = Code(trajectory="o" * 32, counts="o" * 32)
ENDS: tuple[Status, ...] = ("ok", "ok", "ok", "diverged", "crashed", "failed")


def of(stack: str, **changes: Any) -> dict[str, Any]:
    """The fields of a record of a stack that is made here, each with an id of its own."""
    known = {"id": uuid.uuid4().hex, "machine": HERE, "conditions": conditions_of(GPT), "numerics": off_the_clock()}
    return {**known, "code": code_of(GPT, stack), **changes}


def runs(seeds: Sequence[int], **changes: Any) -> list[Line]:
    """What both sides learned of some seeds."""
    return [factories.learned(stack, seed, **of(stack, **changes)) for seed in seeds for stack in LION.sides]


def times(replicates: int, **changes: Any) -> list[Line]:
    """So many sets of processes, timed here."""
    sides = [factories.side(stack, code=code_of(GPT, stack), **changes) for stack in LION.sides]
    heading = {name: value for name, value in of("lion").items() if name not in ("id", "code")}
    return [
        factories.timed(sides, replicate, **heading, id=uuid.uuid4().hex, started=f"2026-01-0{number}T00:00:00+00:00")
        for number, replicate in enumerate(range(replicates), 1)
    ]


def plan(lines: Sequence[Line], seeds: int = 3, timings: int = 3, tuned: bool = False) -> CampaignPlan:
    return CampaignPlan([LION], Records.of(lines), Wanted(seeds, timings, tuned=tuned))


def rows(lines: Sequence[Line], tuned: bool = False) -> list[Row]:
    """This machine's rows of the pair."""
    known = pairs(Records.of(lines), lambda stack: "baseline", tuned=lambda stack: tuned)
    return [row for row in known if row.stack == "lion" and row.machine.key == HERE.key]


def ids(row: Row) -> list[tuple[str, str]]:
    return [(pair.reference.id, pair.contender.id) for pair in row.known.learned]


def test_seeds_that_were_learned_elsewhere_are_on_the_board_where_the_plan_asks_for_none() -> None:
    lines = [*runs(range(3), machine=THERE, numerics=NATIVE), *runs([0]), *times(3)]
    assert plan(lines).jobs() == []
    (row,) = rows(lines)
    assert row.seeds == (0, 1, 2) and row.learned_on == THERE.name


def test_counts_of_the_installed_code_come_before_the_machine_s_own_of_another() -> None:
    counts = [factories.counted(stack, **of(stack, machine=THERE)) for stack in LION.sides]
    old = [factories.counted(stack, **of(stack, code=OLD)) for stack in LION.sides]
    lines = [*counts, *old, *times(1)]
    assert plan(lines).counts() == []
    assert rows(lines)[0].unverified == ()


def test_a_timing_of_all_parts_of_a_run_counts_beside_a_later_one_of_its_beginning() -> None:
    changing = [factories.counters(flops=number) for number in (1, 2)]
    counts = [factories.counted(stack, points=changing, **of(stack)) for stack in LION.sides]
    early = [line.model_copy(update={"started": "2026-02-01T00:00:00+00:00"}) for line in times(1)]
    lines = [*counts, *times(1, windows=FIFTHS), *early]
    assert plan(lines, timings=1).timings() == []
    assert len(rows(lines)[0].known.timed) == 1


@pytest.mark.parametrize(("own", "whose"), [(range(5), HERE), (range(3), THERE)])
def test_tuned_curves_come_before_more_that_are_not(own: range, whose: object) -> None:
    """And a search that has not ended elsewhere is made here."""
    there: dict[str, Any] = {"machine": THERE, "numerics": NATIVE}
    grid = [run for rate in RATES for run in _trials(rate, range(3), **there)]
    lines = [*grid, *runs(own), *times(3)]
    begun = [*(run for rate in START for run in _trials(rate, [0], **there)), *runs(own), *times(3)]
    assert plan(lines, tuned=True).jobs() == [] and plan(begun, tuned=True).jobs() != []
    (row,) = rows(lines, tuned=True)
    assert row.learned_on == THERE.name and row.tuned and row.tuned[1].rate == 3.0
    known = plan(lines, tuned=True).learned_pairs(LION)
    assert [(theirs.id, ours.id) for theirs, ours in known] == ids(row)
    assert {run.conditions.rate for sides in known for run in sides} == {3.0}


def _trials(rate: float, seeds: Sequence[int], **changes: Any) -> list[Line]:
    """Runs at a rate; the best is 3."""
    end = Evaluation(step=20, loss=2.0 + abs(RATES.index(rate) - RATES.index(3.0)))
    return runs(seeds, conditions=conditions_of(GPT.but(rate=rate)), curve=[end], **changes)


SIDES = st.sampled_from([LION.sides, LION.sides, LION.sides, ("baseline",), ("lion",)])
PLACES = st.sampled_from([(HERE, off_the_clock()), (HERE, NATIVE), (THERE, NATIVE), (THERE, off_the_clock())])
CHANGES = st.fixed_dictionaries(
    {
        "status": st.sampled_from(ENDS),
        "source": st.sampled_from(["", "", "others"]),
        "started": st.integers(10, 59).map("2026-01-01T00:00:{}+00:00".format),
    },
    optional={"code": st.just(OLD)},
)
RUNS = st.lists(st.tuples(SIDES, st.integers(0, 3), PLACES, CHANGES, st.booleans()), min_size=3, max_size=16)


@settings(max_examples=150, deadline=None)
@given(RUNS, st.booleans())
def test_plan_and_board_see_equal_pairs(drawn: list[tuple[Any, ...]], tuned: bool) -> None:
    lines = times(1)
    for stacks, seed, (machine, numerics), changes, equal in drawn:
        for stack in stacks:
            bits = {"trajectory_sha256": f"baseline {seed} 2.0"} if equal else {}
            own = of(stack, machine=machine, numerics=numerics, **changes)
            lines.append(factories.learned(stack, seed, **own, **bits))
    known = plan(lines, tuned=tuned)
    (row,) = rows(lines, tuned)
    planned = known.learned_pairs(LION)
    sound = [(theirs.id, ours.id) for theirs, ours in planned if theirs.status == ours.status == "ok"]
    assert [pair for pair in ids(row) if pair in sound] == sound
    failed = [failure for failure in row.failures if failure.kind == "learned"]
    assert {ours.seed for _, ours in planned} <= {*row.seeds, *(failure.replicate for failure in failed)}
    if "learned" not in row.unverified and "crashed" not in {failure.status for failure in failed}:
        assert ids(row) == sound
    if not tuned and not known.jobs():
        assert len(planned) >= known.wanted.seeds
