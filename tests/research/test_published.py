"""The study's figures, made again from the committed rows and traces, without torch."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest

from research.published_steps import published_fit as judged
from research.published_steps import published_rows as published
from research.published_steps import published_tables as shown
from research.published_steps.fits import confusion, shared_peaks
from research.published_steps.published_fit import (
    Comparison,
    Fit,
    Predictable,
    Residual,
    is_judged,
    known_rows,
    level_for_new_sources,
    peaks,
    quantile,
    step_of_row,
    study,
    why_not,
)
from research.published_steps.published_rows import READERS, cases, lines_of, predicted, rows, sharded, traces
from research.published_steps.published_tables import drawing, expressible, sentences, table
from research.published_steps.ratios import pairs, ratio_of
from research.published_steps.reserved_peaks import reserved_peaks
from research.published_steps.stalls import ALONE, FIXED, STALLED, set_apart
from suite.topics.by_others.by_others import PATH, published_ratios, written
from suite.topics.modelled_time.devices import devices
from suite.topics.modelled_time.modelled import (
    IN_FP8,
    RUNS,
    TIME,
    TIME_ACROSS_NODES,
    TIME_FAR,
    TIME_IN_A_NODE,
    UNSEEN,
    WIDEST,
    Band,
    Believed,
    believed,
    time_on,
)
from suite.topics.modelled_time.roofline import modelled, widest


@cache
def made() -> Comparison:
    return study()


def test_every_row_is_predicted_or_says_why_it_is_not() -> None:
    assert len(rows()) == sum(len(lines_of(name)) for name in READERS)
    predicted = {(each.row.table, each.row.line) for each in known_rows()}
    for row in rows():
        assert ((row.table, row.line) in predicted) != bool(why_not(row)), row
        assert row.source and (row.device in devices() or row.case is None)
    assert sum(made().not_expressed.values()) + len(made().times) == len(rows())


def test_a_trace_is_of_a_case() -> None:
    assert set(traces()) <= {each.key for each in cases()}


def test_a_counted_peak_is_what_was_allocated() -> None:
    """But for santacoder's, which keeps one to five more of its logits than its code says."""
    for peak in peaks():
        case = peak.row.case
        assert case is not None
        if case.model != "gpt_bigcode" or (case.batch == 4 and not case.adapters):
            assert abs(peak.log_error) < 0.012, peak


def test_what_is_reserved_is_beside_what_was_shown() -> None:
    """Of rows whose allocated peak is counted right; of a model that keeps more than its code says nothing is said."""
    lines, known = lines_of("fms_finetune_techniques"), reserved_peaks()
    assert len({peak.line for peak in known}) == len(known) > 8
    for peak in known:
        assert peak.shown_bytes == float(lines[peak.line - 2]["nvidia_smi_memory_mib"]) * 2**20
        assert peak.reserved_bytes % (2 << 20) == 0
    assert abs(median([peak.log_error for peak in known if peak.counted_right])) < 0.1


def committed() -> list[list[str]]:
    return list(csv.reader((published.FOLDER / "gpu_times.csv").read_text("utf-8").splitlines()))


def test_every_prediction_is_made_again() -> None:
    """The fit ends where its arithmetic, which is a processor's own, can say no more: a time moves by that little."""
    kept = published.predicted()
    assert kept.keys() == {(each.of.row.table, each.of.row.line) for each in made().times}
    for each in made().times:
        assert kept[each.of.row.table, each.of.row.line] == pytest.approx(each.modelled, rel=1e-2)


@cache
def of_committed_times() -> Comparison:
    """The study of the predictions that are committed. Shares, and bands, which end at a row's residual, jump where a
    row's is a little another: they are no figures to compare between two fits."""

    def as_committed(residuals: Iterable[Residual], by: str) -> list[Residual]:
        kept = published.predicted(by=by)
        times = [(each, kept[each.of.row.table, each.of.row.line]) for each in residuals]
        return [replace(each, modelled=time, log_error=math.log(time / each.measured)) for each, time in times]

    times, unseen = as_committed(made().times, "modelled_s"), as_committed(made().unseen, "of_other_gpus_s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged, "held_out", lambda: times)
        patch.setattr(judged, "on_unseen_gpus", lambda _: unseen)
        return study()


def share_of_powers(moved: float) -> list[str]:
    """The last column, were the edge of 10 % of a power, in ln, ``moved`` outwards: powers have a fit of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown, "math", SimpleNamespace(log=lambda x: math.log(x) + moved))
        return [line[6] for line in csv.reader(table(of_committed_times()).splitlines())]


def test_the_committed_figures_are_those_of_the_committed_predictions() -> None:
    again = list(csv.reader(table(of_committed_times()).splitlines()))
    assert [line[:4] for line in committed()] == [line[:4] for line in again]
    digits, of_a_fit = 2e-4, 2e-3  # predictions have six
    inner, outer = share_of_powers(-of_a_fit), share_of_powers(of_a_fit)
    for ours, theirs, least, most in zip(again[1:], committed()[1:], inner[1:], outer[1:], strict=True):
        power = ours[0] == "board power"
        for a, b in zip(ours[4:6], theirs[4:6]):
            assert a == b or float(a) == pytest.approx(float(b), abs=of_a_fit if power else digits)
        assert ours[6] == theirs[6] if not power else float(least) <= float(theirs[6]) <= float(most)
    bands = of_committed_times().bands
    assert {kind: band.residuals for kind, band in bands.items()} == {
        kind: band.residuals for kind, band in believed().bands.items()
    }
    for kind, band in bands.items():
        assert band.half_width == pytest.approx(believed().bands[kind].half_width, abs=digits)


def _alone(each: Predictable) -> float:
    return modelled(each.step, each.device, judged.SOFTWARE[each.row.table], judged.sent_by(each.row)).step_s


def test_the_arrays_of_a_fit_give_the_model_s_own_times() -> None:
    some = known_rows()[::7]
    fit = Fit(some)
    times = fit.seconds(np.zeros(len(fit.names)))
    for each, time in zip(some, times):
        assert time == pytest.approx(_alone(each))


def test_what_ships_gives_the_fit_s_times() -> None:
    alone = (each for each in known_rows() if each.row.table == "fms_finetune_techniques" and each.row.gpus == 1)
    some = list(alone)[:4]
    fit = Fit(some)
    solved = {name: -0.1 - 0.01 * at for at, name in enumerate(fit.names) if name[0] != "step"}
    shipped = Believed(multipliers={" ".join(name): value for name, value in solved.items()})
    for each, time in zip(some, fit.predicted(solved)):
        device = shipped.calibrated(each.device)

        software = judged.SOFTWARE[each.row.table]
        software = replace(software, attention_share=shipped.attention(software.attention, device))
        assert modelled(each.step, device, software).step_s == pytest.approx(time)


def test_a_source_is_predicted_by_constants_that_never_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its measured times may be anything: they change no prediction of its own rows, and some of another's."""
    before = {(each.of.row.table, each.of.row.line): each.modelled for each in made().times}
    name = "fms_finetune_techniques"

    changed = tuple(
        replace(each, row=replace(each.row, measured_s=3 * each.measured_s)) if each.row.table == name else each
        for each in known_rows()
    )
    monkeypatch.setattr(judged, "known_rows", lambda: changed)
    again = [each for table in (name, "neusight_steps") for each in judged._residuals(*judged._split(table))]
    after = {(each.of.row.table, each.of.row.line): each.modelled for each in again}
    own = [key for key in before if key[0] == name]
    assert own and all(after[key] == pytest.approx(before[key]) for key in own)
    assert any(after[key] != pytest.approx(before[key], rel=1e-3) for key in after if key[0] != name)


def test_a_gpu_that_no_fit_saw_is_predicted_by_rows_of_others() -> None:
    """Where one source alone has a GPU, that is the source left out; of an H100 three have rows."""
    by_source = {(each.of.row.table, each.of.row.line): each.modelled for each in made().times}
    unseen = {(each.of.row.table, each.of.row.line): each for each in made().unseen}
    assert {each.of.device.name for each in made().times if is_judged(each.of.row)} == {
        each.of.device.name for each in unseen.values()
    }
    alone = [key for key, each in unseen.items() if each.of.device.name == "RTX-3090"]
    assert alone and all(unseen[key].modelled == by_source[key] for key in alone)
    shared = [key for key, each in unseen.items() if each.of.device.name == "H100-SXM"]
    assert any(unseen[key].modelled != pytest.approx(by_source[key], rel=1e-3) for key in shared)


def test_accumulation_repeats_the_passes_and_ranks_share_the_update() -> None:
    row = next(each for each in rows() if each.accumulated > 1 and step_of_row(each) is not None)
    assert row.case is not None
    one = traces()[row.case.key].step
    several = step_of_row(row)
    assert one is not None and several is not None
    assert several.flops == row.accumulated * one.flops


def test_a_band_is_the_next_larger_residual() -> None:
    assert quantile([0.01 * at for at in range(1, 20)]) == pytest.approx(0.18)
    assert quantile([-0.3, 0.1]) == 0.3 and math.isnan(quantile([]))
    assert Believed(bands={RUNS: Band(0.1, 9, 2)}).band(RUNS).half_width == 0.1
    assert Believed().band(TIME) == Band(0.35, 0, 0)


def test_a_band_holds_nine_of_ten_residuals_of_a_source_that_it_never_saw() -> None:
    """One of three sources is twice as noisy, so nine of ten of all residuals are not enough."""
    scattered = np.random.default_rng(0).standard_normal((3, 40)) * [[1.0], [1.0], [2.0]]
    some = {each.of.row.table: each for each in made().times}
    alike = [[replace(each, log_error=error) for error in errors] for each, errors in zip(some.values(), scattered)]
    together = [residual for own in alike for residual in own]
    level = level_for_new_sources(together)
    assert level > 0.9

    def kept(level: float) -> float:
        ends = [
            quantile([error for at, own in enumerate(scattered) if at != left for error in own], level)
            for left in range(3)
        ]
        return sum((np.abs(own) <= end).sum() for own, end in zip(scattered, ends)) / scattered.size

    assert kept(level) >= 0.9 > kept(level - 0.01)
    assert level_for_new_sources(alike[2]) == 0.9  # of one source, nothing can be left out


def test_the_page_of_commands_says_what_the_study_says() -> None:
    """Its committed figures, which are whatever processor made them."""
    page = " ".join((Path(__file__).parents[2] / "docs/commands.md").read_text("utf-8").split())
    of_gpus = {line[2]: line for line in committed() if line[:2] == ["time", "GPUs"]}
    kinds = ("one", "a node", "2 to 32 nodes", "a node, FP8")
    one, node, nodes, fp8 = ([*map(float, filter(None, of_gpus[name][4:]))] for name in kinds)
    expressed, measured = expressible(made())
    fits = confusion(shared_peaks())
    errors = sorted(abs(peak.log_error) for peak in peaks())
    for words in (
        f"{expressed:,} of {measured:,} published measurements are expressed",
        f"median error of {100 * one[0]:.0f} % and a bias of {100 * one[1]:+.1f} %".replace("-", "−"),
        f"{100 * one[2]:.1f} % lay inside the band",
        f"±{100 * believed().bands[TIME].half_width:.0f} % on one GPU",
        f"with a band of ±{100 * believed().bands[TIME_ACROSS_NODES].half_width:.0f} %, and beyond there is no time",
        f"on several GPUs of a node the median error is {100 * node[0]:.0f} %, on 2 to 32 nodes {100 * nodes[0]:.0f} %",
        f"on several GPUs of a node a median error of {100 * fp8[0]:.0f} % and a band of "
        f"±{100 * believed().bands[TIME_IN_A_NODE + IN_FP8].half_width:.0f} %, over more nodes no band",
        f"right for {100 * fits.right:.0f} % of {fits.all:,} configurations",
        f"Allocated peaks of {len(errors)} published fine-tuning runs are counted with a median error of "
        f"{100 * median(errors):.2f} %, "
        f"{sum(error <= 0.02 for error in errors)} of them within 2 %",
    ):
        assert words in page, words


def test_the_plot_and_the_sentences(tmp_path: Path) -> None:
    assert drawing(made()).svg().count("<circle") + drawing(made()).svg().count("<path") > len(made().times)
    assert "constants fitted to the others" in sentences(made())[0]


def test_a_band_that_says_nothing_is_none_and_says_why() -> None:
    known = made()
    assert all(band.half_width <= WIDEST for band in known.bands.values())
    assert TIME_FAR not in known.bands and "links of several nodes" in known.no_bands[TIME_FAR]
    assert {TIME, TIME_IN_A_NODE, TIME_ACROSS_NODES, TIME + UNSEEN} <= known.bands.keys()
    assert not known.no_bands.keys() & known.bands.keys()
    assert f"band of {TIME_FAR}: unavailable (" in "\n".join(sentences(known))
    more = next(each for each in known.lines if (each.by, each.group) == ("GPUs", "more nodes"))
    assert math.isnan(more.coverage)  # nothing is inside a band that is not there


def line_of(dp: int = 1, pp: int = 1, tp: int = 8, nodes: int = 1, **values: object) -> dict[str, str]:
    said = {"model": "1B", "kv_heads": 32, "status": "measured", "nodes": nodes, "dp": dp, "pp": pp, "tp": tp}
    return {name: str(value) for name, value in {**said, "zero_stage": 0, **values}.items()}


def test_pairs_of_rows_set_a_stall_apart_and_no_model_has_a_say() -> None:
    def of(*passes: tuple[int, int, float], **more: int) -> list[str]:
        lines = (
            line_of(micro_batch=batch, grad_accumulation=count, step_time_ms=1e3 * time, **more)
            for batch, count, time in passes
        )
        return set_apart(list(lines))

    assert of((1, 64, 1.0), (2, 32, 0.9)) == ["", ""]
    assert of((1, 64, 4.0), (2, 32, 2.0)) == [FIXED, ""]  # as long a pass for half of the work
    assert of((1, 64, 1.0), (1, 64, 1.4)) == ["", STALLED]
    assert of((1, 64, 1.0)) == [""] and of((1, 64, 1.0), nodes=2) == [ALONE]


def test_stages_run_their_dearest_one_again_and_all_others_once() -> None:
    row = next(each for each in rows() if each.table == "simumax_b200" and each.stages == 2)
    assert row.case is not None and row.deeper is not None
    own, deeper, step = traces()[row.case.key].step, traces()[row.deeper.key].step, step_of_row(row)
    assert own is not None and deeper is not None and step is not None
    layer = deeper.flops - own.flops
    assert step.flops == pytest.approx(
        row.layer_runs * layer + row.head_runs * (own.flops - row.case.layers * layer), rel=1e-6
    )
    passes = row.head_runs
    assert (row.layer_runs, row.accumulated) == (row.case.layers * (passes + 1), passes + 1)


def in_eight_bits() -> list[Predictable]:
    return [each for each in known_rows() if each.row.case is not None and each.row.case.eight_bits is not None]


def test_rows_in_eight_bits_are_judged_as_a_kind_of_their_own() -> None:
    by_source = {name: [each.row for each in in_eight_bits() if each.row.table == name] for name in SOURCES}
    assert {name: len(own) for name, own in by_source.items()} == SOURCES
    stated = [each for each in rows() if each.table == "megatron_bridge" and each.precision.startswith("fp8")]
    assert len(stated) == 71 + 10 and all(
        "packed" in each.why_not or "adapters" in each.why_not for each in stated if not each.case
    )
    for each in in_eight_bits():
        kind = time_on(each.row.gpus, each.row.node, widest(each.step, products_alone=True))
        assert kind.endswith(IN_FP8) or kind == TIME_FAR
    band = believed().bands[TIME_IN_A_NODE + IN_FP8]
    assert band.sources == 3 and band.residuals > 25
    assert believed().has_rows(devices()["GB300"], "float8_e5m2") and not believed().has_rows(
        devices()["L4"], "float8_e4m3fn"
    )
    assert TIME_IN_A_NODE + IN_FP8 + UNSEEN in believed().bands


SOURCES = {"megatron_bridge": 71, "mlperf_llama31_8b": 13, "llm_foundry_mpt": 5}


def test_interleaved_stages_leave_a_part_of_the_pipeline_s_ends() -> None:
    """Of 405 billion parameters over 8 stages in 4 chunks each: 16 places of which embedding and head take two."""
    row = next(
        each for each in rows() if (each.table, each.kind, each.stages) == ("megatron_bridge", "llama 3.1 405b", 8)
    )
    assert row.case is not None and row.case.layers == 15 and row.deeper is not None and row.deeper.layers == 16
    assert row.layer_runs == 15 * row.accumulated + round(7 * 16 / 4) and row.head_runs == row.accumulated


def test_sharded_ranks_gather_twice_and_scatter_once() -> None:
    names = [(each.name, each.phase) for each in sharded(1e9, 2e9, 8)]
    assert names == [("all-gather", "forward"), ("all-gather", "backward"), ("reduce-scatter", "backward")]
    assert len(sharded(1e9, 2e9, 8, again=False)) == 2 and sharded(1e9, 2e9, 1) == ()


def test_the_ratios_that_ship_are_made_again() -> None:
    lines, every = PATH.read_text("utf-8").splitlines(), list(pairs())
    assert len(published_ratios()) == len(every) == len(lines) - 1 > 2000
    times = predicted()
    for at in range(0, len(every), 41):
        assert written([ratio_of(*every[at], times, believed())]).splitlines()[1] == lines[1 + at]


def test_predicted_times_are_of_rows() -> None:
    number_of = {table: len(lines_of(table)) for table in READERS}
    assert len(predicted()) > 1900
    assert all(2 <= line < 2 + number_of[table] for table, line in predicted())
