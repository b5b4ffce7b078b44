"""The study of modelled step times against published ones: its tables, its plot, and the bands that ship.

    python -m suite.show.published [FOLDER]

makes all of it again from the committed rows and traces, without torch: FOLDER/gpu_times.csv and gpu_times.svg (by
default beside the rows), and ``modelled.json``, by which `leantrain count --gpu` says how far it is to be believed.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from suite.judge.published import Comparison, Residual, StudySummary, peaks, study
from suite.record.files import replacing
from suite.record.modelled import write
from suite.record.published import FOLDER, rows
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, Words, save

COLUMNS = ("of", "by", "group", "rows", "median absolute error", "median signed error", "inside others' bands")
SHAPES = ("dot", "open", "triangle", "square", "cross")


def table(found: Comparison) -> str:
    """All groups as CSV: of step times, of ratios, and of what is not expressed."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for of, lines in (("time", found.lines), ("ratio", found.ratio_lines), ("peak memory", memory_lines())):
        for each in lines:
            numbers = (f"{each.error:.4f}", f"{each.bias:+.4f}", f"{each.coverage:.3f}")
            out.writerow((of, each.by, each.group, each.count, *("" if "nan" in cell else cell for cell in numbers)))
    for (source, why), count in sorted(found.not_expressed.items()):
        out.writerow(("not expressed", source, why, count, "", "", ""))
    return text.getvalue()


def memory_lines() -> list[StudySummary]:
    """Counted peaks of allocated bytes against published ones, by technique: nothing is fitted."""
    found = peaks()
    names = ["all", *sorted({each.row.technique for each in found})]
    lines = []
    for name in names:
        errors = [each.log_error for each in found if name in ("all", each.row.technique)]
        if errors:
            error, bias = float(np.median(np.abs(errors))), float(np.median(errors))
            lines.append(
                StudySummary("technique" if name != "all" else "all", name, len(errors), error, bias, float("nan"))
            )
    return lines


def sentences(found: Comparison) -> list[str]:
    """What the study says, in words."""
    time, ratio = found.lines[0], found.ratio_lines[0]
    expressed = len(found.times)
    lines = [
        f"{expressed} of {len(rows())} published rows are expressed, of {len({e.of.row.table for e in found.times})} "
        f"sources; each source is predicted by constants fitted to the others",
        f"step time: median absolute error {time.error:.1%}, bias {time.bias:+.1%}, "
        f"{time.coverage:.0%} inside the bands of the other sources",
        f"ratios ({ratio.count}): median absolute error {ratio.error:.1%}, bias {ratio.bias:+.1%}, "
        f"{ratio.coverage:.0%} inside",
    ]
    if memory := memory_lines():
        lines.append(f"allocated peak ({memory[0].count}): median absolute error {memory[0].error:.2%}")
    lines += [
        f"band of {kind}: ±{band.half_width:.0%} ({band.residuals} residuals)" for kind, band in found.bands.items()
    ]
    return lines


def drawing(found: Comparison, width: float = 760, height: float = 520) -> Drawing:
    """Modelled over measured against measured times, a shape a source; no colour: nothing of it is measured here."""
    off = [each.modelled / each.measured for each in found.times]
    frame = Frame(
        68, 34, width - 16, height - 46,
        Axis("published step time, ms", *around([1e3 * each.measured for each in found.times])),
        Axis("modelled over published", *around([*off, 0.7, 1.4])),
    )  # fmt: skip
    marks: list[Mark] = frame.marks()
    marks.append(Line("one", [(frame.left, frame.py(1)), (frame.right, frame.py(1))]))
    if (band := found.bands.get("time")) is not None:
        for edge in (1 + band.half_width, 1 / (1 + band.half_width)):
            marks.append(Line("one dashed", [(frame.left, frame.py(edge)), (frame.right, frame.py(edge))]))
    place = frame.left
    for shape, source in zip(SHAPES, dict.fromkeys(each.of.row.table for each in found.times)):
        marks += [_mark(shape, place, 18), Words(place + 9, 22, source.replace("_", " "))]
        place += 30 + 6.6 * len(source)
        marks += [_place(shape, each, frame) for each in found.times if each.of.row.table == source]
    return Drawing(width, height, marks, "Modelled step times over published ones; the table has the numbers.")


def _place(shape: str, each: Residual, frame: Frame) -> Mark:
    return _mark(shape, frame.px(1e3 * each.measured), frame.py(each.modelled / each.measured))


def _mark(shape: str, x: float, y: float) -> Mark:
    if shape in ("dot", "open"):
        return Dot(f"{shape} same", x, y, 3)
    if shape == "cross":
        return Line("mean same", [(x - 3, y - 3), (x + 3, y + 3)])
    corners: Sequence[tuple[float, float]] = [(x, y - 4), (x + 4, y + 3), (x - 4, y + 3)]
    if shape == "square":
        corners = [(x - 3, y - 3), (x + 3, y - 3), (x + 3, y + 3), (x - 3, y + 3)]
    return Line("open same", corners, closed=True)


def main(folder: Path = FOLDER) -> None:
    found = study()
    with replacing(folder / "gpu_times.csv") as partial:
        partial.write_text(table(found), "utf-8")
    save(drawing(found), folder / "gpu_times.svg")
    write(found.believed())
    print("\n".join(sentences(found)))
    for (source, why), count in sorted(Counter(found.not_expressed).items()):
        print(f"not expressed: {source}: {count}: {why}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
