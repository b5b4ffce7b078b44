"""Shows the study of modelled step times against published ones: its tables, its plot, and the bands that ship.

    python -m research.published_steps.published_tables [FOLDER]

makes all of it again from the committed rows and traces, without torch: FOLDER/gpu_times.csv, gpu_times.svg and
predicted.csv (by default beside the rows). It also writes what ships: ``modelled.json``, by which `leantrain count
--gpu` says how far it is to be believed, and the ratios of rows for the pages of techniques
(:mod:`suite.topics.by_others.by_others`).
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np

from research.published_steps.board_power import BATCHES, LIMITS, drawn, power_ratios
from research.published_steps.fits import confusion, peak_errors, shared_peaks
from research.published_steps.published_fit import NO_RESULT, Comparison, Residual, StudySummary, peaks, study
from research.published_steps.published_rows import FOLDER, PREDICTED, predicted, rows
from research.published_steps.ratios import pairs, ratio_of
from research.published_steps.reserved_peaks import reserved_peaks
from suite.record.files import replacing
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, Words, save
from suite.topics.by_others import by_others
from suite.topics.modelled_time.modelled import believed, write

COLUMNS = ("of", "by", "group", "rows", "median absolute error", "median signed error", "inside others' bands")
SHAPES = ("dot", "open", "triangle", "square", "cross", "diamond", "bar", "dash", "slash")


def table(comparison: Comparison) -> str:
    """Writes all groups as CSV: of step times, of ratios, and of what is not expressed."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for of, lines in (("time", comparison.lines), ("ratio", comparison.ratio_lines), ("peak memory", memory_lines())):
        for line in lines:
            numbers = (f"{line.error:.4f}", f"{line.bias:+.4f}", f"{line.coverage:.3f}")
            out.writerow((of, line.by, line.group, line.count, *("" if "nan" in cell else cell for cell in numbers)))
    for name, count, error, bias, inside in power_lines():
        out.writerow(("board power", "change", name, count, f"{error:.4f}", f"{bias:+.4f}", f"{inside:.3f}"))
    for name, count in asdict(confusion(shared_peaks())).items():
        out.writerow(("fits 80 GB", "said and happened", name.replace("_", " "), count, "", "", ""))
    right, pairs_of_gpus = comparison.in_order
    out.writerow(("order of two GPUs", "right", "all", pairs_of_gpus, "", "", f"{right / max(pairs_of_gpus, 1):.3f}"))
    for (source, why), count in sorted(comparison.not_expressed.items()):
        out.writerow(("not expressed", source, why, count, "", "", ""))
    return text.getvalue()


def predicted_times(comparison: Comparison) -> str:
    """Writes each predicted row's time as CSV, and that by constants of other GPUs, too, where the row is judged."""
    unseen = {_key(residual): f"{residual.modelled:.6g}" for residual in comparison.unseen}
    lines = [
        f"{residual.of.row.table},{residual.of.row.line},{residual.modelled:.6g},{unseen.get(_key(residual), '')}"
        for residual in comparison.times
    ]
    return "\n".join(["table,line,modelled_s,of_other_gpus_s", *lines, ""])


def _key(residual: Residual) -> tuple[str, int]:
    return residual.of.row.table, residual.of.row.line


def memory_lines() -> list[StudySummary]:
    """Compares counted peaks with published ones, by technique: allocated bytes; of ranks, and where a line says so,
    reserved ones. Nothing is fitted."""
    counted_peaks = peaks()
    names = ["all", *sorted({peak.row.technique for peak in counted_peaks})]
    lines = []
    for name in names:
        errors = [peak.log_error for peak in counted_peaks if name in ("all", peak.row.technique)]
        if errors:
            error, bias = float(np.median(np.abs(errors))), float(np.median(errors))
            lines.append(
                StudySummary("technique" if name != "all" else "all", name, len(errors), error, bias, float("nan"))
            )
    kept = [peak.log_error for peak in reserved_peaks() if peak.counted_right]
    if kept:
        middle = float(np.median(np.abs(kept))), float(np.median(kept))
        lines.append(StudySummary("reserved peak beside nvidia-smi", "all", len(kept), *middle, float("nan")))
    shared = peak_errors(shared_peaks())
    if shared:
        middle = float(np.median(np.abs(shared))), float(np.median(shared))
        lines.append(StudySummary("source", "nanotron ultrascale", len(shared), *middle, float("nan")))
    return lines


def power_lines() -> list[tuple[str, int, float, float, float]]:
    """Summarises ratios of board power and of energy, by what changes, each GPU's by what was fitted to the others: how
    many, the median absolute error, the signed one, and the share within 10 %."""
    ratios = power_ratios()
    lines = []
    for change, of in product((LIMITS, BATCHES), ("power", "energy")):
        own = [ratio.power_error if of == "power" else ratio.energy_error for ratio in ratios if ratio.change == change]
        known = [error for error in own if error is not None]
        if known:
            within = sum(abs(error) <= math.log(1.1) for error in known) / len(known)
            middle = float(np.median(np.abs(known))), float(np.median(known))
            lines.append((f"{of} by {change}", len(known), *middle, within))
    return lines


def expressible(comparison: Comparison) -> tuple[int, int]:
    """Counts rows with a result that the model expresses (as a step's time, or as a board's power), and all with a
    result."""
    unmeasured = sum(count for (_, why), count in comparison.not_expressed.items() if why == NO_RESULT)
    powers = sum(1 for power in drawn())
    return len(comparison.times) + powers, len(rows()) - unmeasured


def sentences(comparison: Comparison) -> list[str]:
    """Says what the study says, in words."""
    ratio = comparison.ratio_lines[0]
    expressed, measured = expressible(comparison)
    sources = {residual.of.row.table for residual in comparison.times}
    right, of_gpus = comparison.in_order
    lines = [
        f"{expressed} of {measured} published rows with a result are expressed ({expressed / measured:.0%}), "
        f"{len(comparison.times)} as a step's time, of {len(sources)} sources; "
        f"each source is predicted by constants fitted to the others",
        *(
            f"step time, {line.by}: {line.group} ({line.count}): median error a factor of {math.exp(line.error):.3f}, "
            f"bias {math.exp(line.bias):.3f}"
            + ("" if math.isnan(line.coverage) else f", {line.coverage:.1%} inside others' bands")
            for line in comparison.lines
            if line.by.startswith("GPUs")
        ),
        f"order of two GPUs that run the same ({of_gpus} pairs): right in {right / max(of_gpus, 1):.1%}",
        f"ratios ({ratio.count}): median absolute error {ratio.error:.1%}, bias {ratio.bias:+.1%}, "
        f"{ratio.coverage:.0%} inside",
    ]
    if memory := memory_lines():
        lines.append(f"allocated peak ({memory[0].count}): median absolute error {memory[0].error:.2%}")
        lines += [
            f"{line.by} ({line.count}): median absolute error {line.error:.1%}, bias {line.bias:+.1%}"
            for line in memory
            if line.by.startswith("reserved")
        ]
    fits = confusion(shared_peaks())
    if fits.all:
        lines.append(
            f"fits or not, of {fits.all}: right in {fits.right:.1%} (said to fit: {fits.fits_ran} ran, "
            f"{fits.fits_no_result} had no result; said not to: {fits.too_large_ran} ran, "
            f"{fits.too_large_no_result} had none)"
        )
    lines += [
        f"{name} ({count}): median absolute error {error:.1%}, bias {bias:+.1%}, {inside:.0%} within 10 %"
        for name, count, error, bias, inside in power_lines()
    ]
    lines += [
        f"band of {kind}: ±{band.half_width:.0%} ({band.residuals} residuals)"
        for kind, band in comparison.bands.items()
    ]
    lines += [f"band of {kind}: unavailable ({why})" for kind, why in comparison.no_bands.items()]
    return lines


def drawing(comparison: Comparison, width: float = 760, height: float = 520) -> Drawing:
    """Draws modelled over measured against measured times, a shape a source; no colour: nothing of it is measured
    here."""
    off = [residual.modelled / residual.measured for residual in comparison.times]
    frame = Frame(
        68,
        34,
        width - 16,
        height - 46,
        Axis("published step time, ms", *around([1e3 * residual.measured for residual in comparison.times])),
        Axis("modelled over published", *around([*off, 0.7, 1.4])),
    )
    marks: list[Mark] = frame.marks()
    marks.append(Line("one", [(frame.left, frame.py(1)), (frame.right, frame.py(1))]))
    if (band := comparison.bands.get("time")) is not None:
        for edge in (1 + band.half_width, 1 / (1 + band.half_width)):
            marks.append(Line("one dashed", [(frame.left, frame.py(edge)), (frame.right, frame.py(edge))]))
    place = frame.left
    sources = dict.fromkeys(residual.of.row.table for residual in comparison.times)
    for shape, source in zip(SHAPES, sources, strict=True):
        marks += [_mark(shape, place, 18), Words(place + 9, 22, source.replace("_", " "))]
        place += 30 + 6.6 * len(source)
        marks += [_place(shape, residual, frame) for residual in comparison.times if residual.of.row.table == source]
    return Drawing(width, height, marks, "Modelled step times over published ones; the table has the numbers.")


def _place(shape: str, residual: Residual, frame: Frame) -> Mark:
    return _mark(shape, frame.px(1e3 * residual.measured), frame.py(residual.modelled / residual.measured))


def _mark(shape: str, x: float, y: float) -> Mark:
    if shape in ("dot", "open"):
        return Dot(f"{shape} same", x, y, 3)
    if shape == "bar":
        return Line("mean same", [(x, y - 4), (x, y + 4)])
    if shape == "dash":
        return Line("mean same", [(x - 4, y), (x + 4, y)])
    if shape == "slash":
        return Line("mean same", [(x - 3, y + 3), (x + 3, y - 3)])
    if shape == "cross":
        return Line("mean same", [(x - 3, y - 3), (x + 3, y + 3)])
    corners: Sequence[tuple[float, float]] = [(x, y - 4), (x + 4, y + 3), (x - 4, y + 3)]
    if shape == "diamond":
        corners = [(x, y - 3), (x + 3, y), (x, y + 3), (x - 3, y)]
    if shape == "square":
        corners = [(x - 3, y - 3), (x + 3, y - 3), (x + 3, y + 3), (x - 3, y + 3)]
    return Line("open same", corners, closed=True)


def main(folder: Path = FOLDER) -> None:
    comparison = study()
    with replacing(folder / "gpu_times.csv") as partial:
        partial.write_text(table(comparison), "utf-8")
    save(drawing(comparison), folder / "gpu_times.svg")
    with replacing(folder / PREDICTED) as partial:
        partial.write_text(predicted_times(comparison), "utf-8")
    write(comparison.believed())
    times, bands = predicted(folder), believed()
    with replacing(by_others.PATH) as partial:
        partial.write_text(by_others.written(ratio_of(*pair, times, bands) for pair in pairs()), "utf-8")
    print("\n".join(sentences(comparison)))
    for (source, why), count in sorted(Counter(comparison.not_expressed).items()):
        print(f"not expressed: {source}: {count}: {why}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m research.published_steps.published_tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    main(**vars(parser.parse_args()))
