"""Shows step-time ratios of small models beside those that the device's operators foretell: sentences, table, plot.

    python -m research.small_steps.small_steps_in_words [FOLDER [RESULTS]]

makes small_steps.csv and small_steps.svg again (by default beside this module) from the records, traces and measured
operators of a results folder, without torch.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path

from research.small_steps.small_step_ratios import Agreement, SmallStep, SmallSteps, agreement, small_steps
from suite.judge.rows import rows
from suite.record.files import replacing
from suite.record.store import Store
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, Words, save
from suite.topics.modelled_time import device_samples as own_device
from suite.topics.modelled_time import step_traces
from suite.topics.modelled_time.device_model import calibrated
from suite.topics.modelled_time.device_samples import OwnDevice

FOLDER = Path(__file__).parent
COLUMNS = ("machine", "baseline", "task", "stack", "reference", "measured ratio", "modelled ratio", "timing")


def read(results: Path) -> tuple[SmallSteps, OwnDevice] | str:
    """Reads the committed ratios by the newest measured CPU of a results folder; or why there are none."""
    known = [own_device.read(path.parent) for path in sorted(results.glob(f"*/{own_device.NAME}"))]
    cpus = sorted(
        (device for device in known if device.samples and device.device == "cpu"), key=lambda device: device.made
    )
    if not cpus:
        return f"no machine's operators are in {results}: {own_device.COMMAND}"
    records, _ = Store(results).read()
    return small_steps(rows(records), step_traces.read(results), cpus[-1]), cpus[-1]


def table(ratios: SmallSteps) -> str:
    """Writes every ratio as CSV."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for step in ratios.steps:
        code = "of the installed code" if step.current else "of older code"
        numbers = (f"{step.measured:.4f}", f"{step.modelled:.4f}")
        out.writerow((step.machine, step.place.baseline, step.place.task, step.stack, step.reference, *numbers, code))
    return text.getvalue()


def groups(ratios: SmallSteps) -> list[tuple[str, Agreement]]:
    """Says how far model and measurement agree: of all, of the measured machine's own, of what is current, by
    baseline."""
    named: list[tuple[str, Sequence[SmallStep]]] = [
        ("all", ratios.steps),
        (f"timed on {ratios.machine}", ratios.own),
        ("of the installed code", ratios.current),
    ]
    for baseline in sorted({step.place.baseline for step in ratios.current}):
        named.append((f"of it {baseline}", [step for step in ratios.current if step.place.baseline == baseline]))
    return [(name, agreement(steps)) for name, steps in named if len(steps) > 2]


def sentences(ratios: SmallSteps, known: OwnDevice) -> list[str]:
    """Says what they say, in words."""
    lines = calibrated(known)
    for name, of in groups(ratios):
        lines.append(
            f"step-time ratios at nano, {name} ({of.count} of {of.techniques} stacks): Spearman {of.spearman:.3f}, "
            f"median error {of.error:.1%}, {of.within:.0%} within 25 %, direction right in {of.direction:.0%} of "
            "effects above 10 %"
        )
    lines += [f"step-time ratio not modelled: {count}: {why}" for why, count in sorted(ratios.why_not.items())]
    return lines


def drawing(ratios: SmallSteps, width: float = 560, height: float = 520) -> Drawing:
    """Draws modelled against measured ratios, filled where the timing is of the installed code; no colour."""
    values = [step.measured for step in ratios.steps] + [step.modelled for step in ratios.steps] or [1.0]
    ends = around(values)
    frame = Frame(
        68, 16, width - 16, height - 46, Axis("measured step over the reference's", *ends), Axis("modelled", *ends)
    )
    marks: list[Mark] = frame.marks()
    for factor in (1.0, 1.25, 1 / 1.25):
        low, high = max(ends[0], ends[0] / factor), min(ends[1], ends[1] / factor)
        line = [(frame.px(low), frame.py(low * factor)), (frame.px(high), frame.py(high * factor))]
        marks.append(Line("one" if factor == 1 else "one dashed", line))
    for step in ratios.steps:
        kind = "dot same" if step.current else "open same"
        marks.append(Dot(kind, frame.px(step.measured), frame.py(step.modelled), 3))
    if len(ratios.current) > 2:
        of = agreement(ratios.current)
        marks.append(
            Words(frame.left + 8, frame.top + 14, f"● Spearman {of.spearman:.2f} of {of.count}; ○ of older code")
        )
    return Drawing(width, height, marks, "Modelled step-time ratios over measured ones; dashes: a quarter off.")


def main(folder: Path = FOLDER, results: Path = Path("results")) -> None:
    small = read(results)
    if isinstance(small, str):
        print(f"small steps: unavailable: {small}")
        return
    with replacing(folder / "small_steps.csv") as partial:
        partial.write_text(table(small[0]), "utf-8")
    save(drawing(small[0]), folder / "small_steps.svg")
    print("\n".join(sentences(*small)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m research.small_steps.small_steps_in_words", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results"))
    main(**vars(parser.parse_args()))
