"""A campaign fills in what is missing and nothing else, keeps all that was measured, and times no busy machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.entries.sources import code_of
from suite.judge.rows import row_of, rows
from suite.judge.tuning import START
from suite.measure import campaign
from suite.measure import missing as plan
from suite.measure.campaign import Effort, Measured, Tally, in_chunks, measure
from suite.measure.contenders.result import result_of, results_of
from suite.measure.forecast import sides_s
from suite.measure.learning import witness_of
from suite.measure.missing import Pair, Wanted, pairs_of_stack
from suite.measure.provenance import Heading, conditions_of
from suite.measure.timing import Protocol
from suite.record import store as store_module
from suite.record.job import Job, Setting
from suite.record.machine import fingerprint
from suite.record.numerics import NATIVE, off_the_clock
from suite.record.schema import FIFTHS, Code, Counted, Evaluation, Learned, Line, Renewal, Timed, Witness
from suite.record.store import Store, StoreError
from tests import factories

GPT = Setting(baseline="gpt", size="pico", steps=20)
LION = Pair(GPT, "lion")
WITNESS_STEPS = round(plan.WITNESS_SHARE * conditions_of(GPT.but(steps=None)).steps)
OLD = Code(trajectory="o" * 32, counts="o" * 32)


def heading(setting: Setting, stack: str) -> dict[str, Any]:
    """The fields of evidence that was made here and now."""
    return Heading(setting, off_the_clock()).fields() | {"code": code_of(setting, stack)}


def counted(setting: Setting, stack: str, **changes: Any) -> Counted:
    return factories.counted(stack, **heading(setting, stack) | changes)


def learned(job: Job, **changes: Any) -> Learned:
    return factories.learned(job.stack, job.seed, **heading(job.setting, job.stack) | changes)


def timed(setting: Setting, stacks: Sequence[str], replicate: int, windows: int = 1, **changes: Any) -> Timed:
    fields = heading(setting, stacks[0])
    fields.pop("code")
    sides = [factories.side(stack, code=code_of(setting, stack), windows=windows) for stack in stacks]
    return factories.timed(sides, replicate, **fields | changes)


class Measuring:
    """Stands in for what trains; ``asked`` are the measurements in their order, ``protocols`` how was timed."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.protocols: list[Protocol] = []
        self.changing: set[str] = set()
        self.jobs: list[Job] = []
        self.at_once: set[int | None] = set()
        self.loss = 2.0
        self.loss_of: Callable[[Job], float] = lambda job: self.loss
        self.learned: Callable[[Job], Learned] = lambda job: learned(job, final=self.loss_of(job))

    def count(self, setting: Setting, stack: str, limits: Any) -> Counted:
        self.asked.append(("count", stack))
        points = [factories.counters(flops=number) for number in (1, 2)] if stack in self.changing else []
        return counted(setting, stack, points=points)

    def learn_all(
        self, jobs: Sequence[Job], *, stop: Any, at_once: int | None, **_: Any
    ) -> Iterator[tuple[Job, Learned]]:
        self.at_once.add(at_once)
        for job in jobs:
            if stop():
                return
            self.asked.append(("learn", job.stack, job.seed, job.setting.steps))
            self.jobs.append(job)
            yield job, self.learned(job)

    def time_together(
        self, setting: Setting, stacks: Sequence[str], replicate: int, protocol: Protocol, server: object
    ) -> Timed:
        self.asked.append(("time", *stacks, replicate))
        self.protocols.append(protocol)
        return timed(setting, stacks, replicate, protocol.windows)

    def kinds(self) -> list[str]:
        return list(dict.fromkeys(each[0] for each in self.asked))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    """The campaign without training, on an idle machine."""
    fake = Measuring()
    for name in ("count", "learn_all", "time_together"):
        monkeypatch.setattr(campaign, name, getattr(fake, name))
    monkeypatch.setattr(campaign, "loaded_servers", lambda number: [SimpleNamespace(close=lambda: None)] * number)
    monkeypatch.setattr(campaign, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(campaign, "PATIENCE_S", 0.0)
    return fake


def run(folder: Path, pairs: Sequence[Pair] = (LION,), **options: Any) -> Measured:
    wanted = {
        name: options.pop(name) for name in ("seeds", "timings", "ruler_seeds", "here", "renewed") if name in options
    }
    wanted |= {} if options.pop("time", True) else {"timings": 0}
    together, warn = options.pop("together", False), options.pop("warn", lambda text: None)
    fixed = Wanted(**wanted, tuned=False, most_seeds=0)
    return measure(pairs, folder, Effort(fixed, **options), together=together, warn=warn)


def put(folder: Path, *lines: Line, machine: str = "here") -> None:
    for line in lines:
        Store(folder).append(line, machine)


def both(seeds: int = 3, **changes: Any) -> list[Learned]:
    """What both sides of LION learned, long ago."""
    changes |= {"started": "2025-01-01T00:00:00+00:00"}
    jobs = [Job(setting=GPT, stack=stack, seed=seed) for seed in range(seeds) for stack in LION.sides]
    return [learned(job, **changes) for job in jobs]


def test_it_counts_and_times_once_then_learns_then_times_and_does_nothing_twice(
    measuring: Measuring, tmp_path: Path
) -> None:
    first = run(tmp_path, seeds=2, timings=2)
    assert measuring.kinds() == ["count", "time", "learn"]
    assert measuring.asked[2] == ("time", "baseline", "lion", 0) and measuring.asked[-1][-1] == 1
    assert sorted(measuring.asked) == sorted(
        [
            ("count", "baseline"),
            ("count", "lion"),
            *(("learn", s, n, 20) for s in LION.sides for n in (0, 1)),
            *(("time", "baseline", "lion", n) for n in (0, 1)),
        ]
    )
    assert first.sentence == "made here: 2 counts, 4 learned runs, 2 timings"
    again = run(tmp_path, seeds=2, timings=2)
    read = "2 counts, 4 learned runs, 2 timings"
    assert (again.added, again.sentence) == ([], f"nothing was missing; read from records: {read}")
    more = run(tmp_path, seeds=3, timings=2)
    assert [each.kind for each in more.added] == ["learned", "learned"]


def test_a_machine_that_is_too_busy_counts_and_learns_and_is_not_timed(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "busy_cores", lambda: 1.5)
    said: list[str] = []
    measured = run(tmp_path, warn=said.append)
    assert measuring.kinds() == ["count", "learn"]
    assert (measured.busy, measured.left, measured.failures) == (1.5, Tally(timings=3), [])
    assert said == [
        "too busy to time: others use 1.5 cores; timings are left out, run it again when the machine is idle"
    ]
    assert measured.sentence == ("made here: 2 counts, 6 learned runs; left: 3 timings; the same command goes on")
    again = run(tmp_path)
    assert again.sentence.startswith("nothing was measured here: others use 1.5 cores, which is too many to time; read")
    monkeypatch.setattr(campaign, "busy_cores", lambda: 0.0)
    assert {each.kind for each in run(tmp_path).added} == {"timed"}


def test_the_curve_of_the_reference_is_learned_where_it_is_asked_for(measuring: Measuring, tmp_path: Path) -> None:
    run(tmp_path, seeds=1, ruler_seeds=2, time=False)
    budgets = [each for each in measuring.asked if each[:2] == ("learn", "baseline")]
    assert sorted(budgets) == [("learn", "baseline", s, n) for s in (0, 1) for n in (7, 10, 14, 20, 28, 40, 56)]
    assert run(tmp_path, seeds=1, ruler_seeds=2, time=False).added == []


# other code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "seeds"), [(0.05, 5), (0.0, 3)])
def test_a_row_that_three_seeds_leave_undecided_gets_two_more(
    measuring: Measuring, tmp_path: Path, noise: float, seeds: int
) -> None:
    """Lion is no other than the reference, but for noise; SGD is far worse, which is decided."""

    def loss(job: Job) -> float:
        budget = (job.setting.steps or 20) ** -0.2
        off = noise * (-1) ** (job.seed // 2 + job.seed + (job.stack == "lion"))
        return float(8 * budget * (1.3 if job.stack == "sgd_momentum" else 1) * (1 + off))

    measuring.loss_of = loss
    wanted = Wanted(ruler_seeds=2, tuned=False)
    measure([LION, Pair(GPT, "sgd_momentum")], tmp_path, Effort(wanted))
    learned_seeds = {
        stack: [
            seed
            for kind, name, seed, steps in (each for each in measuring.asked if each[0] == "learn")
            if name == stack and steps in (None, 20)
        ]
        for stack in ("lion", "sgd_momentum")
    }
    assert learned_seeds == {"lion": list(range(seeds)), "sgd_momentum": [0, 1, 2]}


def test_tuned_rows_get_the_grid_first_and_more_seeds_at_the_rate_it_chose(
    measuring: Measuring, tmp_path: Path
) -> None:
    def run(job: Job) -> Learned:
        best = 3.0 if job.stack == "lion" else 1.0
        last = 2.0 + abs(job.setting.rate - best)
        return learned(job, final=last, curve=[Evaluation(step=0, loss=4.0), Evaluation(step=20, loss=last)])

    measuring.learned = run
    measure([LION], tmp_path, Effort(Wanted(seeds=3, timings=1)))
    asked = [(job.stack, job.seed, job.setting.rate) for job in measuring.jobs]
    assert sorted(asked[:6]) == sorted((stack, 0, rate) for stack in ("baseline", "lion") for rate in START)
    assert {(stack, rate) for stack, seed, rate in asked if seed == 1} == {
        ("baseline", 0.55),
        ("baseline", 1.0),
        ("baseline", 1.7),
        ("lion", 1.7),
        ("lion", 3.0),
        ("lion", 5.5),
    }
    assert [each for each in asked if each[1] == 2] == [("baseline", 2, 1.0), ("lion", 2, 3.0)]
    (row,) = rows(Store(tmp_path).read()[0])
    assert row.tuned and [side.rate for side in row.tuned] == [1.0, 3.0] and row.seeds == (0, 1, 2)
    assert not row.tuning_open


def test_no_more_cores_are_filled_than_were_asked_for(measuring: Measuring, tmp_path: Path) -> None:
    run(tmp_path, seeds=1, time=False, cores=1)
    assert measuring.at_once == {1}


def test_more_seeds_are_learned_of_what_differs_from_the_reference_alone(measuring: Measuring, tmp_path: Path) -> None:
    measuring.learned = lambda job: learned(job, trajectory_sha256=f"{job.seed}")
    run(tmp_path, seeds=3, time=False)
    assert [(job.stack, job.seed) for job in measuring.jobs] == [
        ("baseline", 0),
        ("lion", 0),
        ("baseline", 1),
        ("baseline", 2),
    ]


def test_runs_of_other_code_are_renewed_by_one_that_is_equal_to_the_bit(measuring: Measuring, tmp_path: Path) -> None:
    put(tmp_path, *both(code=OLD))
    measured = run(tmp_path, time=False)
    assert [each for each in measuring.asked if each[0] == "learn"] == [
        ("learn", "baseline", 0, 20),
        ("learn", "lion", 0, 20),
    ]
    renewals = [each for each in measured.added if isinstance(each, Renewal)]
    assert {(each.stack, each.old) for each in renewals} == {("baseline", "o" * 32), ("lion", "o" * 32)}
    assert not any(isinstance(each, Learned) for each in measured.added)
    row = result_of(LION, Store(tmp_path).read()[0])
    assert (row.seeds, row.unverified) == ((0, 1, 2), ())
    assert run(tmp_path, time=False).added == []


def test_rows_of_many_pairs_are_those_of_each_and_a_pair_without_records_has_none(tmp_path: Path) -> None:
    put(tmp_path, *both())
    records, _ = Store(tmp_path).read()
    rows = results_of([Pair(GPT, "sam"), LION, LION], records)
    assert [repr(row) for row in rows] == 2 * [repr(result_of(LION, records))]


def test_a_run_whose_probes_come_out_different_renews_nothing(measuring: Measuring, tmp_path: Path) -> None:
    put(tmp_path, *both(code=OLD, probes={"lion.error": 0.0}))
    measuring.learned = lambda job: learned(job, probes={"lion.error": float(job.stack == "lion")})
    measured = run(tmp_path, time=False)
    assert {each.stack for each in measured.added if isinstance(each, Renewal)} == {"baseline"}
    assert {each.stack for each in measured.added if isinstance(each, Learned)} == {"lion"}


def test_runs_of_other_code_that_come_out_different_are_replaced(measuring: Measuring, tmp_path: Path) -> None:
    put(tmp_path, *both(code=OLD))
    measuring.loss = 1.9
    measured = run(tmp_path, time=False)
    assert not any(isinstance(each, Renewal) for each in measured.added)
    assert sorted(each[1:3] for each in measuring.asked if each[0] == "learn") == [
        (stack, seed) for stack in LION.sides for seed in range(3)
    ]
    row = result_of(LION, Store(tmp_path).read()[0])
    assert {each.contender.final.loss for each in row.known.learned if each.contender.final} == {1.9}


def test_a_tenth_of_a_run_is_kept_as_a_witness_and_is_in_no_row(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "WITNESSED_STEPS", 1)
    run(tmp_path, time=False)
    records, _ = Store(tmp_path).read()
    assert [(each.stack, each.conditions.steps) for each in records.witnesses] == [
        (stack, WITNESS_STEPS) for stack in LION.sides
    ]
    assert len(rows(records)) == 1
    assert run(tmp_path, time=False).added == []


def test_the_repetition_of_a_witness_renews_every_run(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "WITNESSED_STEPS", 1)
    put(tmp_path, *both(code=OLD), *(witness_of(each) for each in both(seeds=1, code=OLD)))
    measured = run(tmp_path, time=False)
    assert [each for each in measuring.asked if each[0] == "learn"] == [
        ("learn", stack, 0, WITNESS_STEPS) for stack in LION.sides
    ]
    assert {each.stack for each in measured.added if isinstance(each, Renewal)} == set(LION.sides)
    assert not any(isinstance(each, Learned | Witness) for each in measured.added)
    row = result_of(LION, Store(tmp_path).read()[0])
    assert (row.seeds, row.unverified) == ((0, 1, 2), ())


def test_a_witness_that_comes_out_different_renews_nothing_and_bears_witness_for_the_new_code(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "WITNESSED_STEPS", 1)
    put(tmp_path, *both(code=OLD), *(witness_of(each) for each in both(seeds=1, code=OLD)))
    measuring.loss = 1.9
    measured = run(tmp_path, time=False)
    kinds = [each.kind for each in measured.added if each.kind != "counted"]
    assert (kinds.count("renewal"), kinds.count("witness"), kinds.count("learned")) == (0, 2, 6)
    assert run(tmp_path, time=False).added == []


def test_renewing_asks_for_nothing_that_was_not_there(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "WITNESSED_STEPS", 1)
    assert run(tmp_path, renewed=True, timings=0).added == []
    old = [counted(GPT, "lion", code=OLD)]
    put(tmp_path, *old, *both(seeds=2, code=OLD), *(witness_of(each) for each in both(seeds=1, code=OLD)))
    measured = run(tmp_path, renewed=True, seeds=5, timings=0)
    assert measuring.asked == [("count", "lion"), *(("learn", stack, 0, WITNESS_STEPS) for stack in LION.sides)]
    assert [each.kind for each in measured.added] == ["counted", "renewal", "renewal"]
    assert not measured.left
    assert run(tmp_path, renewed=True, seeds=5, timings=0).added == []


# other machines -------------------------------------------------------------------------------------------------------


def test_curves_of_another_machine_are_used_and_named_and_never_its_times(measuring: Measuring, tmp_path: Path) -> None:
    put(tmp_path, *both(machine=factories.MACHINE), timed(GPT, LION.sides, 0, machine=factories.MACHINE))
    run(tmp_path, timings=2)
    assert measuring.kinds() == ["count", "time"]
    row = result_of(LION, Store(tmp_path).read()[0])
    assert row.machine.key == fingerprint("cpu", 1).key
    assert (row.learned_on, row.seeds, len(row.known.timed)) == (factories.MACHINE.name, (0, 1, 2), 2)
    assert f"curves learned on {factories.MACHINE.name}" in row.notes
    run(tmp_path, timings=2, here=True)
    assert len([each for each in measuring.asked if each[0] == "learn"]) == 6


@pytest.mark.parametrize("change", ["data", "seeds", "code", "side"])
def test_curves_of_another_machine_that_do_not_fit_are_learned_here(
    measuring: Measuring, tmp_path: Path, change: str
) -> None:
    theirs: dict[str, Any] = {"machine": factories.MACHINE}
    if change == "data":
        theirs["conditions"] = conditions_of(GPT).model_copy(update={"data_sha256": "0" * 64})
    if change == "code":
        theirs["code"] = OLD
    lines = both(2 if change == "seeds" else 3, **theirs)
    put(tmp_path, *(each for each in lines if change != "side" or each.stack == "lion"))
    run(tmp_path, time=False)
    assert len([each for each in measuring.asked if each[0] == "learn"]) == 6
    row = row_of(Store(tmp_path).read()[0], GPT, "lion", "baseline")
    assert row.learned_on == fingerprint("cpu", 1).name


# sets of processes ----------------------------------------------------------------------------------------------------


def test_where_the_cost_changes_each_fifth_is_timed_and_nothing_is_learned_for_that(
    measuring: Measuring, tmp_path: Path
) -> None:
    measuring.changing = {"lion"}
    run(tmp_path, timings=1)
    assert [each.windows for each in measuring.protocols] == [FIFTHS]
    assert measuring.kinds() == ["count", "time", "learn"]


def test_contenders_share_the_reference_of_a_set_and_one_that_does_not_attach_leaves_the_others(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_together(*of: Any, server: object) -> Timed:
        whole = measuring.time_together(*of, server=server)
        sides = [
            each.model_copy(update={"status": "not_attached", "reason": "it did nothing"})
            if each.stack == "lawa"
            else each
            for each in whole.contenders
        ]
        return whole.model_copy(update={"contenders": sides, "orders": [[2, 0, 1, 3]], "spawn_order": [3, 2, 1, 0]})

    monkeypatch.setattr(campaign, "time_together", time_together)
    measuring.changing = {"rigl"}
    pairs = [Pair(GPT, stack) for stack in ("lion", "lawa", "rigl", "sam")]
    measured = run(tmp_path, pairs, seeds=1, timings=1)
    assert [each[1:-1] for each in measuring.asked if each[0] == "time"] == [
        ("baseline", "lion", "lawa", "sam"),
        ("baseline", "rigl"),
    ]
    (kept, _) = (each for each in measured.added if isinstance(each, Timed))
    assert [side.stack for side in kept.contenders] == ["baseline", "lion", "sam"]
    assert (kept.orders, kept.spawn_order) == ([[0, 1, 2]], [2, 1, 0])
    assert [stack for stack, _, _ in measured.refused] == ["lawa"]
    assert not measured.left, "what does not attach is not waited for"


def test_a_pair_that_was_timed_among_others_is_not_timed_again(measuring: Measuring, tmp_path: Path) -> None:
    run(tmp_path, [Pair(GPT, stack) for stack in ("lion", "sam")], seeds=1, timings=1)
    run(tmp_path, [Pair(GPT, stack) for stack in ("sam", "lawa", "lion")], seeds=1, timings=1)
    assert [each[1:] for each in measuring.asked if each[0] == "time"] == [
        ("baseline", "lion", "sam", 0),
        ("baseline", "lawa", 0),
    ]


def test_each_stack_comes_once_before_any_comes_again() -> None:
    pairs = [Pair(GPT.but(baseline=name), str(number)) for name in ("gpt", "bert") for number in range(40)]
    chunks = list(in_chunks(pairs))
    assert [pair for chunk in chunks for pair in chunk] == pairs
    assert [len(chunk) for chunk in chunks] == [32, 8, 32, 8]
    done, left = pairs[:33], pairs[33:]
    assert [len(chunk) for chunk in in_chunks(left, done)] == [7, 32, 8], "the first of each come before any second"


def test_on_a_gpu_a_set_is_timed_as_soon_as_it_is_counted(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "MOST_TOGETHER", 2)
    monkeypatch.setattr(campaign._Campaign, "_on_cpu", False)
    pairs = [Pair(GPT, stack) for stack in ("acclip", "adam", "lamb")]
    measure(pairs, tmp_path, Effort(Wanted(seeds=1, timings=1, tuned=False)))
    counts = [place for place, asked in enumerate(measuring.asked) if asked[0] == "count"]
    first_timing = next(place for place, asked in enumerate(measuring.asked) if asked[0] == "time")
    assert len([place for place in counts if place < first_timing]) == 3  # the reference and a set's two
    assert len(counts) == 4


def test_what_takes_long_begins_elsewhere_or_comes_last() -> None:
    def at(name: str, *stacks: str) -> list[Pair]:
        return [Pair(GPT.but(baseline=name), stack) for stack in stacks]

    pairs = at("gpt", "searches", "is_slow", "lion") + at("bert", "searches", "lion", "slow_there")
    long_s = dict(zip([*at("gpt", "searches", "is_slow"), *at("bert", "slow_there")], (60.0, 50.0, 20.0)))
    assert list(in_chunks(pairs, (), lambda pair: long_s.get(pair, 0.0))) == [
        at("bert", "searches"),
        at("gpt", "lion"),
        at("bert", "slow_there"),
        at("gpt", "is_slow"),
        at("bert", "lion"),
        at("gpt", "searches"),
    ]


def test_a_side_takes_its_set_up_and_its_blocks_by_whatever_machine_timed_it() -> None:
    (older,) = factories.timings("sam", 1, setup_s=5.0)
    (timing,) = factories.timings("sam", 1, setup_s=60.0)
    newer = timing.conditions.model_copy(update={"baseline_version": timing.conditions.baseline_version + 1})
    timing = timing.model_copy(update={"conditions": newer})
    side_s = sides_s([older, timing, older])
    blocks_s = [sum(map(sum, side.windows[0].block_s)) for side in timing.contenders]
    assert side_s(timing.conditions, "sam") == pytest.approx(60 + blocks_s[1])
    assert side_s(timing.conditions, "baseline") < 60 and side_s(timing.conditions, "lion") == 0


# other arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("apart", "renewed"), [(2e-7, True), (1e-3, False)])
def test_runs_of_other_arithmetic_and_other_code_are_renewed_up_to_rounding(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, renewed: bool
) -> None:
    monkeypatch.setattr(campaign, "nudged_losses", lambda job, steps, limits: [[2.0 * (1 + 1e-7)] * steps])
    theirs = both(code=OLD, machine=factories.MACHINE, numerics=NATIVE, first_losses=[2.0 * (1 + apart)] * 9)
    put(tmp_path, *theirs)
    measuring.learned = lambda job: learned(job, first_losses=[2.0] * 9)
    measured = run(tmp_path, time=False)
    renewals = [each for each in measured.added if isinstance(each, Renewal)]
    assert [each.equality for each in renewals] == ["rounding"] * (2 * renewed)
    assert all(abs(each.distance - apart) < 1e-9 for each in renewals)
    learned_here = sum(isinstance(each, Learned) for each in measured.added)
    assert learned_here == (2 if renewed else 6), "the first seeds were learned to find out"


# what ends it ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", range(0, 8))
def test_a_full_disk_ends_it_and_all_that_was_measured_before_is_kept(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """On the n-th piece of evidence, whatever its kind."""
    write, left = os.write, room

    def full(handle: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        return write(handle, data)

    monkeypatch.setattr(store_module.os, "write", full)
    with pytest.raises(StoreError, match="the disk is full; what was measured before is kept"):
        run(tmp_path, seeds=2, timings=2)
    monkeypatch.setattr(store_module.os, "write", write)
    records, problems = Store(tmp_path).read()
    assert (len(records.lines), problems) == (room, [])
    run(tmp_path, seeds=2, timings=2)
    assert len(Store(tmp_path).read()[0].lines) == 8


def test_it_stops_when_time_is_up_and_says_what_is_left(measuring: Measuring, tmp_path: Path) -> None:
    said: list[str] = []
    measured = run(tmp_path, minutes=-1.0, warn=said.append)
    assert measured.added == []
    assert measured.left == Tally(counts=2, runs=6, timings=3)
    assert said == ["the budget of -1 minutes is spent; run it again to go on"]
    assert measured.sentence.startswith("nothing was measured here: the budget of -1 minutes is spent; left: 2 counts")


def test_failures_are_named_once_for_each_stack_and_reason(measuring: Measuring, tmp_path: Path) -> None:
    broken = {"status": "crashed", "reason": "exit code 7"}
    gone = {"status": "unavailable", "reason": "needs 8 GPUs"}
    job = Job(setting=GPT, stack="lion")
    measured = Measured([counted(GPT, "lion", **broken), learned(job, **broken), learned(job, **gone)])
    assert measured.failures == [("lion", "crashed", "exit code 7")] * 2


def test_a_stack_is_timed_with_its_parts_although_a_part_is_known(measuring: Measuring, tmp_path: Path) -> None:
    put(tmp_path, timed(GPT, LION.sides, 0))
    pairs = pairs_of_stack(GPT, "lion+lawa")
    for _ in range(2):  # the second time nothing is left to do
        run(tmp_path, pairs, seeds=1, timings=2, together=True)
    together = ("baseline", "lion", "lawa", "lion+lawa")
    assert [each for each in measuring.asked if each[0] == "time"] == [("time", *together, n) for n in (0, 1)]


def test_damaged_lines_are_told(measuring: Measuring, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "learned.jsonl").write_text('{"schema_version": 2, "kind": "learned", "id": "cut o\n')
    said: list[str] = []
    run(tmp_path, time=False, warn=said.append)
    assert "learned.jsonl:1: " in said[0]


def test_a_budget_that_ends_early_ends_the_bar_and_says_what_is_made_and_left(
    measuring: Measuring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = campaign.time.monotonic() + 3600  # later than the true one, by which records begin

    def time_together(*of: Any, **with_server: Any) -> Timed:
        nonlocal clock_s
        clock_s += 20.0
        return measuring.time_together(*of, **with_server)

    monkeypatch.setattr(campaign.time, "monotonic", lambda: clock_s)
    monkeypatch.setattr(campaign, "time_together", time_together)
    shares: list[float] = []
    monkeypatch.setattr(plan, "MOST_TOGETHER", 1)
    effort = Effort(Wanted(seeds=1, timings=2, tuned=False, most_seeds=0), minutes=0.5)
    pairs = [Pair(GPT, stack) for stack in ("lion", "lawa", "sam")]
    measured = measure(pairs, tmp_path, effort, progress=lambda share, what: shares.append(share))
    assert (
        measured.sentence == "made here: 4 counts, 2 timings; left: 4 learned runs, 4 timings; the same command goes on"
    )
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0.0, 1.0)
    rest = measure(pairs, tmp_path, Effort(effort.wanted))
    assert rest.sentence == "made here: 4 learned runs, 4 timings; read from records: 4 counts, 2 timings"


# real runs ------------------------------------------------------------------------------------------------------------


def test_real_evidence_makes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "busy_cores", lambda: 0.0)
    shares: list[tuple[float, str]] = []
    effort = Effort(Wanted(seeds=1, timings=2, tuned=False))
    measured = measure([LION], tmp_path, effort, progress=lambda share, what: shares.append((share, what)))
    assert measured.failures == []
    row = result_of(LION, Store(tmp_path).read()[0])
    kinds = {name: row.value(name).kind for name in ("step_time", "loss", "flops", "whole_time", "process_peak_bytes")}
    assert kinds == {
        "step_time": "measured",
        "loss": "measured",
        "flops": "exact",
        "whole_time": "measured",
        "process_peak_bytes": "measured",
    }
    only = [share for share, _ in shares]
    assert only == sorted(only) and only[0] < 0.01 and only[-1] == 1.0
    assert {what.split()[0] for _, what in shares} == {"preparing", "counting", "learning", "timing", "done"}
