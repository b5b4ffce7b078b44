"""The simulation: peaks equal measured ones to the byte, and transfers keep the times of a hand-made table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain, Link, Stage
from suite.chain.engine import scheduled
from suite.chain.execute import Weights, executed
from suite.chain.observe import Log, _durations
from suite.chain.plan import Infeasible, from_the_input, least, plan_of, planned, unplanned
from suite.chain.schedule import TURN, Op, Schedule, ScheduleError, backs, every_input, plain, segmented, tidied
from suite.chain.simulate import predicted
from suite.chain.tiers import HostTier
from suite.loop.chains import FLOPS_PER_S
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.meters.live import LiveBytes
from techniques.shared.scheduled import Scheduled, blocks_of
from tests.chain.schedules import schedules
from tests.chain.weights import Moved
from tests.runs import new_run


@cache
def run_and_chains(baseline: str) -> tuple[Run, tuple[Chain, ...]]:
    run = new_run(baseline, size="pico", steps=4)
    return run, tuple(Scheduled().profile(run))


def peak_of(run: Run, schedule_list: list[Schedule], weights: Sequence[Sequence[Weights]] = ()) -> int:
    batch, _ = run.next_batch()
    run.model.zero_grad(set_to_none=True)
    live, tier = LiveBytes(), HostTier()
    with ExitStack() as contexts:
        for number, (blocks, schedule) in enumerate(zip(blocks_of(run), schedule_list, strict=True)):
            own = executed(blocks, schedule, tier, weights=weights[number]) if weights else None
            contexts.enter_context(own or scheduled(blocks, schedule, tier))
        contexts.enter_context(live)
        run.forward(batch).backward()
    return live.high_bytes


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_the_predicted_peak_is_the_measured_one(baseline: str, data: st.DataObject) -> None:
    run, chains = run_and_chains(baseline)
    each = [data.draw(schedules(chain.depth, moves=False)) for chain in chains]
    assert plan_of(each, chains).peak_bytes == peak_of(run, each)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit"])
def test_so_it_is_where_the_graphs_leave_at_once_and_come_back_in_time(baseline: str) -> None:
    run, (chain,) = run_and_chains(baseline)
    there, back = list[Op](), list[Op]()
    for i, stage in enumerate(chain.stages):
        items = range(len(stage.saved_bytes))
        there += [Op("save", i), *(Op(kind, i, item) for item in items for kind in ("offload", "wait"))]
        back = [*(Op("prefetch", i, item) for item in items), Op("back", i), *back]
    schedule = tidied(chain.depth, [*there, TURN, *back])
    predicted_bytes = predicted(schedule, chain, Link(1e15, 1e15)).peak_bytes
    assert predicted_bytes == peak_of(run, [schedule])
    assert predicted_bytes < unplanned([chain]).peak_bytes


@pytest.mark.parametrize("baseline", ["gpt", "vit", "mae"])  # bert: see the simulation's limits
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_loaded_weights_and_their_gradients_are_in_the_peak(baseline: str, data: st.DataObject) -> None:
    _, chains = run_and_chains(baseline)
    loaded_peaks_agree(baseline, [data.draw(schedules(chain.depth, moves=False, weights=True)) for chain in chains])


def test_gradients_that_leave_with_a_later_chains_weights_are_not_in_an_earlier_ones_peak() -> None:
    there = [Op("load", 0), Op("run", 0), Op("free", 0), Op("save", 1), TURN]
    encoder = [*there, Op("load", 0), Op("back", 1), Op("save", 0), Op("back", 0), Op("free", 0)]
    decoder = [Op("load", 0), Op("save", 0), Op("free", 0), TURN, Op("load", 0), Op("back", 0), Op("free", 0)]
    loaded_peaks_agree("mae", [tidied(2, encoder), tidied(1, decoder)])


def loaded_peaks_agree(baseline: str, each: list[Schedule]) -> None:
    _, chains = run_and_chains(baseline)
    run, moved = moved_run(baseline)
    moved.reset()
    plan = plan_of(each, chains, Link(math.inf, math.inf))
    tier = moved.tier
    staying = [unit for s, own in enumerate(moved.units) for n, unit in enumerate(own) if n not in each[s].loaded]
    for unit in staying:
        unit.load()
    came, went = tier.bytes_in, tier.bytes_out
    measured = peak_of(run, each, moved.units)  # by the executor, where blocks begin a little later on their way back
    assert measured <= plan.peak_bytes <= 1.03 * measured
    assert sum(seen.in_bytes for seen in plan.predictions) == tier.bytes_in - came
    assert sum(seen.out_bytes for seen in plan.predictions) == tier.bytes_out - went


@cache
def moved_run(baseline: str) -> tuple[Run, Moved]:
    run = new_run(baseline, size="pico", steps=4)
    return run, Moved(run.model, HostTier())


def test_the_profile_leaves_the_run_as_it_was() -> None:
    plain_run, watched = new_run("bert", size="pico", steps=4), new_run("bert", size="pico", steps=4)
    watched.train(1)
    plain_run.train(1)
    Scheduled(seconds="clocked").profile(watched)
    assert watched.train(3) == plain_run.train(3)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_a_pass_has_all_flops_of_a_plain_one(baseline: str) -> None:
    run, chains = run_and_chains(baseline)
    batch, _ = run.next_batch()
    with FlopCounter() as flops:
        run.forward(batch).backward()
    first = chains[0]
    assert first.pass_s * FLOPS_PER_S == pytest.approx(flops.total)
    assert sum(chain.plain_s for chain in chains) + first.outside_s == pytest.approx(first.pass_s)


def test_the_turn_is_a_plain_pass_s() -> None:
    """A pass in which blocks run again says nothing of it, where a median would take 0 for what it said."""
    there, back = [(("save", 0), 1.0), (("saveed", 0), 2.0)], [(("back", 0), 5.0), (("end", -1), 9.0)]
    assert _durations(Log(float, events=[*there, *back]), 0.0, again=False)["turn", -1] == 3.0
    assert ("turn", -1) not in _durations(Log(float, events=[*there, *back]), 0.0, again=True)


def test_clocked_seconds_are_of_the_same_chain() -> None:
    run, chains = run_and_chains("mae")
    clocked = Scheduled(seconds="clocked").profile(run)
    assert [chain.activation_bytes for chain in clocked] == [chain.activation_bytes for chain in chains]
    assert all(stage.run_s > 0 and stage.back_s > 0 for chain in clocked for stage in chain.stages)
    assert clocked[0].outside_s > 0 and clocked[0].pass_s > 0 and clocked[1].pass_s == 0


STAGE = Stage(1.0, 1.0, 2.0, 100, (50, 30), 110, 190, 120, gradient_bytes=7, weight_bytes=10)
CHAIN = Chain((STAGE,) * 3, 100, forward_bytes=1000, backward_bytes=500, turn_s=0.5, turn_peak_bytes=40)


def test_times_and_bytes_of_three_blocks_by_hand() -> None:
    seen = predicted(plain(3), CHAIN)
    assert seen.time_s == seen.compute_s == 3 * 3 + 0.5
    assert seen.turn_bytes == 3 * 180  # three inputs and three graphs' own
    assert seen.peak_bytes == 1000 + 2 * 180 + 100 + 190  # in the third block's forward pass
    assert predicted(every_input(3), CHAIN).time_s == 3 * 4 + 0.5
    assert predicted(from_the_input(3), CHAIN).turn_bytes == 100


def test_transfers_go_on_beside_computation_and_make_it_wait() -> None:
    ops = [
        Op("save", 0),
        Op("offload", 0, 0),
        Op("save", 1),
        Op("save", 2),
        TURN,
        Op("prefetch", 0, 0),
        *backs(range(3)),
    ]
    fast = predicted(tidied(3, ops), CHAIN, Link(100, 100))
    assert fast.time_s == 9.5 and fast.out_bytes == fast.in_bytes == 50
    slow = predicted(tidied(3, ops), CHAIN, Link(10, 10))  # out from 1 to 6, back from 6 to 11, wanted at 7.5
    assert slow.time_s == 11 + 2 and slow.stalled_s == 3.5
    late = predicted(tidied(3, [op for op in ops if op.kind != "prefetch"]), CHAIN, Link(50, 50))
    assert late.stalled_s == pytest.approx(1.0)


def test_what_leaves_counts_until_it_has_left() -> None:
    gone = Op("offload", 0, 0)
    leaving = tidied(3, [Op("save", 0), gone, Op("save", 1), Op("save", 2), TURN, *backs(range(3))])
    waiting = tidied(
        3,
        [
            op
            for each in leaving.ops
            for op in ([each, Op("wait", 0, 0)] if each == gone else [each])
            if op.kind != "drop"
        ],
    )
    assert predicted(leaving, CHAIN, Link(10, 10)).turn_bytes == 540
    assert predicted(waiting, CHAIN, Link(10, 10)).turn_bytes == 490
    assert predicted(waiting, CHAIN, Link(10, 10)).time_s == predicted(leaving, CHAIN, Link(1e9, 10)).time_s + 5


def test_a_block_waits_for_its_weights_and_leaves_its_gradients_by_hand() -> None:
    """Loads of 10 bytes take 5 seconds here, gradients of 7 bytes 3.5 the other way."""
    link = Link(2, 2)
    late = Schedule(
        1,
        (Op("load", 0), Op("run", 0), Op("free", 0), TURN, Op("load", 0), Op("save", 0), Op("back", 0), Op("free", 0)),
    )
    seen = predicted(late, Chain((STAGE,), 100), link)
    assert seen.compute_s == 1 + 1 + 2 and seen.time_s == 2 * 5 + 4 + 3.5
    assert (seen.in_bytes, seen.out_bytes) == (20, 7)
    assert [str(moment.op) for moment in seen.moments] == ["+w0", "f0", "-w0", "|", "+w0", "F0", "B0", "-w0"]
    assert [moment.live_bytes for moment in seen.moments] == [100, 110, 210, 200, 300, 310, 390, 317]
    early = Schedule(
        2,
        (
            Op("load", 0),
            Op("save", 0),
            Op("load", 1),
            Op("free", 0),
            Op("save", 1),
            TURN,
            Op("back", 1),
            Op("free", 1),
            Op("load", 0),
            Op("back", 0),
            Op("free", 0),
        ),
    )
    assert predicted(early, Chain((STAGE,) * 2, 100), link).time_s == (5 + 1) + (5 + 1 + 2) + (5 + 2) + 3.5
    ahead = tidied(2, [*early.ops[:6], Op("load", 0), *(op for op in early.ops[6:] if op.kind != "load")])
    assert predicted(ahead, Chain((STAGE,) * 2, 100), link).time_s == (5 + 1) + (5 + 1) + 5 + 2 + 3.5


def test_moves_want_a_link() -> None:
    ops = [Op("save", 0), Op("offload", 0, 0), TURN, Op("back", 0)]
    with pytest.raises(ScheduleError, match="bytes per second"):
        predicted(Schedule(1, tuple(ops)), Chain((STAGE,), 100))
    with pytest.raises(ValueError, match="more than 0"):
        Link(0, 1)


class Segments(Scheduled):
    """The fastest of all equal segments that fit."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        ways = [
            segmented(chain.depth, [(i, min(i + n, chain.depth)) for i in range(0, chain.depth, n)]) for n in (1, 2)
        ]
        fitting = [way for way in [plain(chain.depth), *ways] if predicted(way, chain).peak_bytes <= budget_bytes]
        if not fitting:
            raise Infeasible("a segment", budget_bytes, min(predicted(way, chain).peak_bytes for way in ways))
        return min(fitting, key=lambda way: predicted(way, chain).time_s)


@pytest.mark.parametrize("share", [0.7, 0.8, 1.0])
def test_several_chains_share_a_budget(share: float) -> None:
    _, chains = run_and_chains("mae")
    budget = int(share * unplanned(chains).peak_bytes)
    plan = planned(Segments(), chains, budget)
    assert plan.peak_bytes <= budget
    assert (plan.time_s == unplanned(chains).time_s) == (share == 1.0)


def test_a_budget_below_the_least_is_refused_with_the_least() -> None:
    _, chains = run_and_chains("gpt")
    with pytest.raises(Infeasible, match="its least is") as error:
        planned(Segments(), chains, 1000)
    assert error.value.least_bytes >= least(chains).peak_bytes
