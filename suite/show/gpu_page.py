"""A technique's step on named GPUs, for its page: modelled, with its band; and its paper's claims beside."""

from __future__ import annotations

from suite.entries.card import Card
from suite.judge.step_time.claimed import beside_model
from suite.record.gpu_times import GpuTimes, ModelledTime
from suite.show.described import Item, Items, PageTable, Paragraph, Part, Section, Subheading, TableCell, TableRow

TITLE = "On a GPU, modelled"
READING = (
    "One training step at the paper's size, modelled from its operators and never measured; the ratio is to the "
    "reference's step, and its band what 9 of 10 published ratios of that kind kept within that the model had not seen."
)
COLUMNS = ("where", "GPU", "step, ms", "ratio", "band")


def section(card: Card, times: GpuTimes) -> Section | None:
    """The section; None where nothing is known of the technique's step."""
    own = [each for each in times.times if each.stack == card.id]
    if not own:
        return None
    anchor = f"{card.id}--gpu"
    parts: list[Part] = []
    known = [each for each in own if each.step_s is not None]
    if known:
        parts.append(PageTable(anchor, f"{TITLE}: {card.name}", COLUMNS, list(map(_line, known)), sorted_by=None))
    lacking = dict.fromkeys(f"{each.place.title}: {each.unavailable}" for each in own if each.step_s is None)
    if lacking:
        parts += [Paragraph("Unavailable:"), Items([Item(each) for each in lacking])]
    if said := beside_model(card.claim, own):
        parts += [Subheading("The paper's claims about a step's time, beside the model"), Items([
            Item(f"{each.words}, on {each.time.gpu} ({each.time.place.title}): {each.claim.statement}", each.claim.id)
            for each in said
        ])]  # fmt: skip
    return Section(anchor, TITLE, READING, parts, is_open=True)


def _line(time: ModelledTime) -> TableRow:
    ratio, band = "", ""
    if time.ratio is not None:
        width = 1 + (time.half_width or 0.0)
        ratio = f"≈{time.ratio:.2f}"
        equal = "both run equal operators"
        band = f"[{time.ratio / width:.2f}, {time.ratio * width:.2f}]" if time.half_width else equal
    cells = (time.place.title, time.gpu, f"≈{1e3 * (time.step_s or 0.0):.4g}", ratio, band)
    return TableRow([TableCell(each, head=not at, kind="modelled" if at > 1 else "") for at, each in enumerate(cells)])
