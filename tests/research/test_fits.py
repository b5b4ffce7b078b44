"""Bytes of ranks that share a model, and power under a limit, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.published_steps.board_power import Drawn, drawn, power_ratios
from research.published_steps.fits import (
    Confusion,
    confusion,
    peak_errors,
    reserved_over_allocated,
    shared_peak,
    shared_peaks,
)
from research.published_steps.nanotron_stages import stages_of
from research.published_steps.published_rows import FOLDER, PublishedRow, SharedMemory, StageMemory, Traced
from suite.topics.modelled_time.devices import devices

H100 = devices()["H100-SXM"]
GIB = 2**30
TRACED = StageMemory(1e9, 4, True, 1)
ROW = PublishedRow(
    "t",
    2,
    "s",
    "H100-SXM",
    "llama",
    "bf16",
    "flash",
    "ddp",
    memory=SharedMemory(
        TRACED, (StageMemory(9e8, 5, False, 2), StageMemory(7e8, 3, True, 1)), 4, 12, 2, True, 40 * GIB
    ),
)


def test_each_stage_keeps_what_it_has_in_flight_and_the_fullest_decides() -> None:
    last = 7e8 * (4 + 12 / 2) + 10 * GIB - GIB - 2 * 3e8
    first = 9e8 * (4 + 12 / 2) + 2 * 9e8 + (2 * 5 + 1) * GIB
    found = shared_peak(ROW, Traced(peak_bytes=10 * GIB, layer_bytes=GIB), H100)
    assert found.fullest_bytes == first > last
    assert shared_peak(ROW, Traced(peak_bytes=30 * GIB, layer_bytes=GIB), H100).fullest_bytes == last + 20 * GIB
    assert found.fits and not shared_peak(ROW, Traced(peak_bytes=90 * GIB), H100).fits
    assert found.reserved_bytes == first * reserved_over_allocated()
    assert found.log_error == pytest.approx(math.log(found.reserved_bytes / (40 * GIB)))


def test_more_is_reserved_than_allocated_by_the_median_of_the_steps_that_are_followed() -> None:
    lines = (FOLDER / "reserved.csv").read_text("utf-8").splitlines()[1:]
    both = [list(map(float, line.split(",")[3:5])) for line in lines]
    assert reserved_over_allocated() == median(reserved / allocated for allocated, reserved in both) > 1.05


@given(
    layers=st.integers(1, 40), stages=st.integers(1, 20), layer_cost=st.integers(1, 50), head_cost=st.integers(0, 99)
)
def test_a_model_is_divided_whole_and_in_order(layers: int, stages: int, layer_cost: int, head_cost: int) -> None:
    divided = stages_of(layers, stages, layer_cost, head_cost)
    blocks = [block for stage in divided for block in stage.blocks]
    assert len(divided) == stages and blocks == ["embedding", *["layer"] * layers, "norm", "head", "cast", "loss"]
    costs = [stage.layers * layer_cost + stage.head * head_cost for stage in divided]
    share, so_far = sum(costs) / stages, 0
    for place, cost in enumerate(costs):  # none ends at its share or below while there is more to come
        so_far += cost
        assert so_far > share * (place + 1) or not any(costs[place + 1 :])


def test_by_hand_a_model_of_one_billion_parameters_leaves_the_last_of_sixteen_stages_without_a_block() -> None:
    """16 layers of 67.1 million and a head of 268.4 million, a share of 83.9 million each: the head stands on the
    thirteenth stage, the cast and the loss behind it."""
    divided = stages_of(16, 16, 4 * 2048**2 + 3 * 2048 * 8192, 131072 * 2048)
    assert [stage.layers for stage in divided] == [2, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 0, 0, 0, 0]
    assert [stage.blocks for stage in divided[12:]] == [("norm", "head"), ("cast",), ("loss",), ()]


def test_what_was_said_and_what_happened() -> None:
    def row(ran: bool) -> PublishedRow:
        assert ROW.memory is not None
        return replace(ROW, memory=replace(ROW.memory, ran=ran))

    some = [(True, 1), (True, 99), (False, 99), (False, 99), (False, 1)]
    found = confusion(shared_peak(row(ran), Traced(peak_bytes=gib * GIB), H100) for ran, gib in some)
    assert found == Confusion(fits_ran=1, fits_no_result=1, too_large_ran=1, too_large_no_result=2)
    assert found.right == 3 / 5


def test_the_committed_rows_have_a_peak_or_none_and_an_outcome() -> None:
    found = shared_peaks()
    assert confusion(found).all == len(found) > 1000
    assert 0 < len(peak_errors(found)) <= len(found)


def test_power_never_passes_its_limit_and_a_lower_one_is_never_faster() -> None:
    known = drawn()
    assert known and all(each.power_w() <= each.row.limit_w for each in known)
    some = known[0]
    free = Drawn(replace(some.row, limit_w=1e4), 300, 0.8)
    assert free.slowdown(3, 0.2, 300) == 1
    tight, tighter = (Drawn(replace(some.row, limit_w=limit), 300, 0.8) for limit in (200, 150))
    assert 1 < tight.slowdown(3, 0.2, 300) < tighter.slowdown(3, 0.2, 300)
    clock = ((200 - 60) / (300 - 60)) ** (1 / 3)
    assert tight.slowdown(3, 0.2, 300) == pytest.approx(0.8 / clock + 0.2)


def test_each_gpu_s_ratios_are_by_constants_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from research.published_steps import board_power

    seen: list[set[str]] = []
    as_it_is = board_power._fitted
    monkeypatch.setattr(
        board_power, "_fitted", lambda of: (seen.append({each.row.device for each in of}), as_it_is(of))[1]
    )
    ratios = power_ratios()
    names = {each.of.row.device for each in ratios}
    assert len(seen) == len(names) and all(len(names - each) == 1 for each in seen)
