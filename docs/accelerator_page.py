"""The page of the papers' accelerators: headlines beside the model, the model, its constants, and what is quoted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from suite.entries.catalogue import catalogue
from suite.judge.study_tables import Study
from suite.topics.board.markdown import code, escape
from techniques.shared.chips import headlines
from techniques.shared.chips.headlines import headline_claims
from techniques.shared.chips.model import Chip, chips, context, energy_tables

FIELDS = ("clock_hz", "units", "bits", "bytes_per_s", "power_w")


def page(studies: Sequence[Study]) -> str:
    return "\n".join([*_head(), *_headlines(studies), *_chips(), *_energy(), *_context()]) + "\n"


def _head() -> Iterator[str]:
    yield "# Accelerators of papers\n"
    yield (
        "No chip is measured here. A paper's algorithm is, on real hardware; its chip is modelled, and what neither "
        "can reach is quoted. The three never stand in one ratio.\n"
    )
    yield "::: techniques.shared.chips.model\n"


def _headlines(studies: Sequence[Study]) -> Iterator[str]:
    yield f"## Headlines\n\n{headlines.NOTE}.\n"
    lines = []
    for entry in catalogue().values():
        rows = {row["claim"]: row for study in studies if study.technique == entry.id for row in _rows(study)}
        for claim in headline_claims(entry.folder).values():
            row = rows.get(claim.id, {"unavailable": f"leantrain study {entry.id} -b {claim.baselines[0]} makes it"})
            lines.append((_entry(entry.id), escape(claim.statement), *_beside(row)))
    heads = ("entry", "quoted", "modelled", "measured", "drift, modelled", "drift, measured", "of what, or why not")
    yield from _table(heads, lines)
    yield ""


def _rows(study: Study) -> Iterator[Mapping[str, object]]:
    for table in study.tables:
        if table.name == "headlines":
            yield from (dict(zip(table.columns, row, strict=True)) for row in table.rows)


def _beside(row: Mapping[str, object]) -> Iterator[str]:
    spread = f" ({_number(row['least'])} to {_number(row['most'])})" if row.get("modelled") is not None else ""
    yield _number(row.get("modelled")) + spread
    yield from (_number(row.get(name)) for name in ("measured", "drift_modelled", "drift_measured"))
    words = [
        f"{kind}: {row[name]}"
        for kind, name in (("modelled", "modelled_of"), ("measured", "measured_of"))
        if row.get(name)
    ]
    yield escape("; ".join([*words, *([f"unavailable: {row['unavailable']}"] if row.get("unavailable") else [])]))


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "n/a"


def _chips() -> Iterator[str]:
    yield "## Modelled\n\nIn brackets where each constant comes from.\n"
    yield from _table(
        ("entry", "machine", "clock, Hz", "multiply-adds a cycle", "bits", "memory, bytes a second", "power, W"),
        [(_entry(chip.name), escape(chip.title), *(_constant(chip, f) for f in FIELDS)) for chip in chips().values()],
    )


def _entry(name: str) -> str:
    known = catalogue()
    return f"[{escape(known[name].card.name)}](techniques/{name}.md)" if name in known else code(name)


def _constant(chip: Chip, name: str) -> str:
    value = getattr(chip, name)
    return "n/a" if value is None else f"{value:g} ({escape(chip.source[name])})"


def _energy() -> Iterator[str]:
    yield "\n## Energy\n\nSavings are shown by every table: the spread is what they are worth.\n"
    rows = [
        (table.name, f"{table.multiply_pj:g}", f"{table.add_pj:g}", f"{table.dram_pj_per_bit:g}", escape(table.source))
        for table in energy_tables()
    ]
    heads = ("table", "multiplication of 32 bits, pJ", "addition, pJ", "a bit of DRAM, pJ", "source")
    yield from _table(heads, rows)


def _context() -> Iterator[str]:
    yield "\n## Literature\n\nTPUs, ASICs and FPGAs are context in the survey.\n"
    yield from _table(
        ("kind", "statement", "figure", "against", "place", "conditions"),
        (
            (
                "literature",
                escape(quote.statement),
                "none" if quote.low is None else f"{quote.low:g} to {quote.high:g}",
                escape(quote.against),
                escape(quote.place),
                escape(quote.conditions),
            )
            for quote in context()
        ),
    )


def _table(heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
