"""Shows what the references have learned, and what they can tell apart: beside each baseline's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from suite.record.text import in_html
from suite.show.described import (
    Figure,
    Folded,
    PageTable,
    Paragraph,
    Part,
    Quoted,
    Section,
    Subheading,
    TableCell,
    TableRow,
)
from suite.topics.on_board import OnBoard
from suite.topics.references.learned_references import LearnedReference, OfReference, Picture, Power, References

TITLE = "References"
READING = (
    "A ratio to a model that has learned nothing is noise. So each reference stands beside classical methods, fitted "
    "to the same training data and judged on the same test data."
)
CONTROLS = (
    "Controls, whose effect is known beforehand: other seeds and perturbed weights change nothing that matters, half "
    "the learning rate does. Equivalent budget: how much training the reference needs to end there, and its 95 % "
    "interval."
)


@dataclass(frozen=True)
class ShownReferences:
    """Holds references, of a baseline's newest version first, and by the family of their conditions those of older code
    and those of an older version."""

    references: References = field(default_factory=References)
    changed: frozenset[str] = frozenset()
    older: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.references.learned or self.references.power)

    @property
    def baselines(self) -> set[str]:
        """Returns the baselines of which something is known."""
        return {run.conditions.baseline for run in [*self.references.learned, *self.references.power]}

    def on(self, baselines: Sequence[str]) -> ShownReferences:
        """Keeps what is known of some baselines; all where none is named."""
        return ShownReferences(self.references.on(baselines), self.changed, self.older)

    def heading(self, reference: OfReference) -> str:
        """Writes the conditions in words, with an older version; a dagger behind what older code made."""
        at = reference.conditions
        version = f" version {at.baseline_version}" if at.family in self.older else ""
        changed = "†" if at.family in self.changed and not version else ""
        return f"{at.baseline}{version} · {at.recipe} · {at.size} · {at.task}{changed}"


def verdict(reference: LearnedReference) -> str:
    """Says in a sentence whether the bars are passed."""
    trained = f"{len(reference.seeds)} seed{'s' * (len(reference.seeds) != 1)}"
    if reference.why:
        return f"It did not end well: {reference.why}."
    if not reference.bars:
        return f"No classical method was tried here ({trained})."
    failed = [bar.method for bar in reference.bars if not bar.passed]
    passed = f"judged by {reference.judged_by}, it is worse than {', '.join(failed)}" if failed else "all are passed"
    return f"{trained}; loss: {reference.quality}; {passed}."


def scores(reference: LearnedReference) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the lines of a table: the reference, then the bars."""
    metrics = list(reference.scores or (reference.bars[0].scores if reference.bars else ()))
    known = [
        ("the reference", reference.scores, ""),
        *((bar.method, bar.scores, _passed(bar.passed)) for bar in reference.bars),
    ]
    lines = [
        [name, *(f"{values[metric]:.4g}" if metric in values else "n/a" for metric in metrics), passed]
        for name, values, passed in known
    ]
    return ["model", *metrics, "bar"], lines


def _passed(passed: bool) -> str:
    return "passed" if passed else "not passed"


def further(reference: LearnedReference) -> str:
    """Says what else the model is worth, in a line."""
    return "; ".join(f"{name}: {value:.4g}" for name, value in reference.further.items())


def captioned(reference: LearnedReference) -> Iterator[tuple[str, list[Picture]]]:
    """Yields the samples by their caption."""
    for caption, samples in groupby(reference.samples, lambda sample: sample.caption):
        yield caption, list(samples)


def controls(power: Power) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the lines of the table of controls."""
    lines = [
        [
            control.name,
            str(control.seeds),
            f"×{control.loss_ratio:.4f}",
            f"×{control.equivalent_budget:.3f} [{control.low:.3f}, {control.high:.3f}]",
        ]
        for control in power.controls
    ]
    return ["control", "seeds", "final loss", "equivalent budget"], lines


def sees(power: Power) -> str:
    """Says what it can tell apart, in a sentence."""
    return (
        f"Of {power.seeds} seeds a comparison on {power.conditions.baseline} sees a change of the equivalent budget of "
        f"{power.smallest_change:.1%} with 80 % power; the seed's own deviation is {power.seed_deviation:.1%}."
    )


def drawn(sample: Picture) -> str:
    """Returns a sample's picture, as an SVG that holds it."""
    place = f'width="{sample.width}" height="{sample.height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sample.width} {sample.height}" {place} role="img">'
        f'<title>{in_html(sample.caption)}</title><image {place} href="data:image/png;base64,{sample.png}"/></svg>'
    )


def section(shown: ShownReferences) -> Section | None:
    """Shows what references have learned and can tell apart; None where nothing is known."""
    parts: list[Part] = []
    for number, run in enumerate(shown.references.learned):
        heading = shown.heading(run)
        parts += [Subheading(f"What the reference has learned: {heading}"), Paragraph(verdict(run))]
        parts.append(_table(f"reference-{number}", f"{heading}: test scores", *scores(run)))
        parts += [Paragraph(f"{further(run)}.")] if run.further else []
        for caption, samples in captioned(run):
            texts = [line for sample in samples if sample.text for line in sample.text.split("\n")]
            drawings = [Figure(drawn(sample), caption, in_text=True) for sample in samples if sample.png]
            parts.append(Folded(caption, [*([Quoted(texts)] if texts else []), *drawings]))
    for number, power in enumerate(shown.references.power):
        heading = shown.heading(power)
        parts += [Subheading(f"What it can tell apart: {heading}"), Paragraph(f"{sees(power)} {CONTROLS}")]
        parts.append(_table(f"power-{number}", f"{heading}: controls", *controls(power)))
    return Section("references", TITLE, "", parts, READING, is_open=True) if shown else None


def _table(anchor: str, title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> PageTable:
    return PageTable(f"{anchor}-title", title, head, [TableRow(list(map(TableCell, line))) for line in lines])


ON_BOARD = OnBoard(80, lambda report: section(report.references))
