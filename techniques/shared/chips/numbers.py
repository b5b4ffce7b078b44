"""Shows what a paper says of its chip, what is modelled of it, and what was measured of its algorithm: side by side,
each in a row that says which it is, and never one over the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from suite.entries.card import read_card
from suite.judge.study_tables import StudyTable
from suite.topics.modelled_time.devices import devices
from techniques.shared.chips.headlines import METRIC as HEADLINE
from techniques.shared.chips.model import Chip, Phase, bound_s, energy_j, energy_tables, time_s

GPU = "V100"  # of most of the papers
Kind = Literal["literature", "modelled", "measured"]
NOTE = (
    "speedup: of what, over what; 1 is as fast. Rows of one kind compare with each other, and with no row of another: "
    "literature is quoted, modelled comes from arithmetic, measured from this machine"
)


class Number(NamedTuple):
    """Holds one figure; ``level`` is the fidelity of a modelled one, ``inputs`` what it rests on."""

    kind: Kind
    what: str
    against: str
    speedup: float | None
    level: str = ""
    inputs: str = ""


def numbers(rows: Iterable[Number]) -> StudyTable:
    """Builds the table ``numbers``: what is quoted, then what is modelled, then what was measured."""
    kinds: Sequence[Kind] = ("literature", "modelled", "measured")
    return StudyTable("numbers", Number._fields, sorted(map(tuple, rows), key=lambda row: kinds.index(row[0])), NOTE)


def quoted(folder: Path) -> list[Number]:
    """Returns what the card in ``folder`` quotes of time and energy, headlines among it, as speed-ups and savings."""
    return [
        Number(
            "literature",
            f"{claim.statement} ({claim.source})",
            "as it says",
            claim.expected if claim.metric == HEADLINE else 1 / claim.expected,
            "",
            claim.conditions,
        )
        for claim in read_card(folder / "card.toml").claim
        if claim.expected and (claim.kind == "literature" or claim.metric == HEADLINE)
    ]


def against_itself(chip: Chip, sparse: Sequence[Phase], dense: Sequence[Phase], inputs: str) -> list[Number]:
    """Compares with the same chip without the paper's method: bound, phases, and energy by each table."""
    whence = f"{inputs}; from memory: {', '.join(chip.guessed)}" if chip.guessed else inputs
    where = f"dense attention on the same array ({chip.title})"
    saved = [
        Number(
            "modelled",
            f"energy, {table.name}",
            where,
            energy_j(dense, table) / energy_j(sparse, table),
            "phases",
            whence,
        )
        for table in energy_tables()
    ]
    return [
        Number("modelled", "time", where, bound_s(dense, chip) / bound_s(sparse, chip), "closed form", whence),
        Number("modelled", "time", where, time_s(dense, chip) / time_s(sparse, chip), "phases", whence),
        *saved,
    ]


def gpu_attention_s(tokens: int, width: int, heads: int, *, fused: bool, half: bool = False) -> float:
    """Computes modelled seconds of forward attention on the papers' GPU, in float32 or in ``half`` precision. Where it
    is not fused, scores go to memory and come back twice: product, softmax, product, one operator after the other. What
    launches take is left out."""
    device, dtype = devices()[GPU], "float16" if half else "float32"
    product = 2 * tokens**2 * width * heads / device.product_flops_per_s(dtype)
    moved = (2 if half else 4) / device.copy_bytes_per_s
    rows, scores = tokens * width * heads * moved, tokens**2 * heads * moved
    if fused:
        return max(2 * product, 4 * rows)
    return 2 * max(product, 2 * rows + scores) + 2 * scores


def against_gpu(chip_s: float, what: str, tokens: int, width: int, heads: int, inputs: str) -> list[Number]:
    """Compares both sides modelled: the paper's kind of baseline, unfused attention, and today's."""
    return [
        Number(
            "modelled",
            what,
            f"{'fused' if fused else 'unfused'} attention on {GPU}, modelled",
            gpu_attention_s(tokens, width, heads, fused=fused) / chip_s,
            "phases",
            inputs,
        )
        for fused in (False, True)
    ]


def drift(tokens: int, width: int = 64, heads: int = 12) -> list[Number]:
    """Computes how far the papers' baseline has moved: unfused over fused attention on their GPU, both modelled, in
    both precisions."""
    rows = []
    for half in (False, True):
        unfused, fused = (gpu_attention_s(tokens, width, heads, fused=fuse, half=half) for fuse in (False, True))
        precision = "float16" if half else "float32"
        what = f"baseline drift: fused attention, {tokens} tokens, {heads} heads of {width}, {precision}"
        against = f"unfused attention on {GPU}, modelled"
        rows.append(Number("modelled", what, against, unfused / fused, "closed form", "devices.toml"))
    return rows
