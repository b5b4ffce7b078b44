"""Bytes of ranks that share a model, and power under a limit, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.judge.step_time.board_power import Drawn, drawn, power_ratios
from suite.judge.step_time.fits import Confusion, confusion, peak_errors, shared_peak, shared_peaks
from suite.record.devices import devices
from suite.record.published import PublishedRow, SharedMemory, Traced

H100 = devices()["H100-SXM"]
GIB = 2**30
ROW = PublishedRow(
    "t", 2, "s", "H100-SXM", "llama", "bf16", "flash", "ddp", memory=SharedMemory(1e9, 4, 3, 4, 12, 2, True, 40 * GIB)
)  # fmt: skip


def test_the_first_stage_keeps_what_is_in_flight() -> None:
    found = shared_peak(ROW, Traced(peak_bytes=10 * GIB, layer_bytes=GIB), H100)
    assert found.fullest_bytes == 10 * GIB + 1e9 * (4 + 12 / 2) + 2 * 4 * GIB
    assert found.fits and not shared_peak(ROW, Traced(peak_bytes=80 * GIB), H100).fits
    assert found.log_error == pytest.approx(math.log(found.fullest_bytes / (40 * GIB)))


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
    from suite.judge.step_time import board_power

    seen: list[set[str]] = []
    as_it_is = board_power._fitted
    monkeypatch.setattr(
        board_power, "_fitted", lambda of: (seen.append({each.row.device for each in of}), as_it_is(of))[1]
    )
    ratios = power_ratios()
    names = {each.of.row.device for each in ratios}
    assert len(seen) == len(names) and all(len(names - each) == 1 for each in seen)
