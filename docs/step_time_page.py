"""The page of modelled step times: how they are made, how far published and own measurements say that they are off."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from suite.topics.board.markdown import escape
from suite.topics.modelled_time.modelled import believed

RESEARCH = Path(__file__).parents[1] / "research"
PICTURES = {
    "published_steps/gpu_times.svg": "modelled over published step times, a shape a source",
    "small_steps/small_steps.svg": "modelled over measured step-time ratios of small models on a CPU",
}
SHOWN = ("all", "GPUs", "source", "GPU", "precision", "attention", "change", "technique", "model")


def pictures() -> Mapping[str, str]:
    """The study's plots, by their path in the site."""
    return {path.name: path.read_text("utf-8") for path in map(RESEARCH.joinpath, PICTURES) if path.is_file()}


def page() -> str:
    return "\n".join([*_head(), *_bands(), *_groups(), *_small(), *_left_out()]) + "\n"


def _head() -> Iterator[str]:
    yield "# Modelled step times\n"
    yield (
        "No GPU was at hand: what a step takes on one is modelled from its operators, never measured, never ranked "
        "with what is, and never coloured. Here it is held against steps that others measured and published, each "
        "source predicted by constants that were fitted to the other sources alone.\n"
    )
    yield "All of it is made again, without torch, by\n"
    yield (
        "```console\n$ python -m research.published_steps.published_tables\n"
        "$ python -m research.small_steps.small_steps_in_words\n```\n"
    )
    yield (
        "from the rows in `research/published_steps/` (its README has their sources and licences), their traced "
        "operators, and the records in `results/`.\n"
    )
    yield from _picture("published_steps/gpu_times.svg")
    yield "::: suite.topics.modelled_time.roofline\n"


def _picture(path: str) -> Iterator[str]:
    name = Path(path).name
    yield f"![{PICTURES[path]}]({name})\n" if name in pictures() else f"The picture {name} is unavailable.\n"


def _bands() -> Iterator[str]:
    known = believed()
    yield "\n## Bands\n"
    yield "Nine of ten residuals of sources that the fit had not seen keep within a band. By kind of change:\n"
    yield from ("| of | band | residuals | sources |", "|---|---|---|---|")
    for kind, band in known.bands.items():
        yield f"| {escape(kind)} | ±{band.half_width:.0%} | {band.residuals} | {band.sources} |"
    for kind, why in known.no_bands.items():
        yield f"| {escape(kind)} | unavailable ({escape(why)}) | | |"


def _lines() -> list[dict[str, str]]:
    with (RESEARCH / "published_steps/gpu_times.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _groups() -> Iterator[str]:
    lines = [line for line in _lines() if line["of"] != "not expressed"]
    for of, title in (
        ("time", "Step times"),
        ("ratio", "Ratios of steps"),
        ("peak memory", "Allocated peaks, counted"),
        ("board power", "Power and energy of a board"),
        ("fits 80 GB", "Fits 80 GB, or not"),
    ):
        own = [line for line in lines if line["of"] == of]
        yield f"\n## {title}\n"
        columns = [column for column in own[0] if column != "of" and any(line[column] for line in own)] if own else []
        yield f"| {' | '.join(columns)} |"
        yield f"|{'---|' * len(columns)}"
        order = {name: at for at, name in enumerate(SHOWN)}
        for line in sorted(own, key=lambda line: order.get(line["by"], len(order))):
            yield f"| {' | '.join(escape(line[name]) for name in columns)} |"


def _small() -> Iterator[str]:
    yield "\n## On a CPU, from its operators\n"
    yield (
        "`leantrain kernels --calibrate` times single operators and the baselines' whole steps on the device that it "
        "runs on, on a GPU as on a CPU. Of a CPU's own constants the step-time ratios follow that its records have "
        "measured; no technique's step was seen by a fit. `small_steps.csv` has every ratio.\n"
    )
    yield from _picture("small_steps/small_steps.svg")
    yield "::: suite.topics.modelled_time.device_model\n"


def _left_out() -> Iterator[str]:
    yield "\n## Rows that are not expressed\n"
    yield from ("| source | rows | why |", "|---|---|---|")
    for line in _lines():
        if line["of"] == "not expressed":
            yield f"| {escape(line['by'].replace('_', ' '))} | {line['rows']} | {escape(line['group'])} |"
