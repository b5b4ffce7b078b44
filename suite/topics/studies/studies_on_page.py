"""Shows links to a technique's studies, on its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from suite.record.job import Spelling
from suite.record.text import in_html
from suite.show.on_board import Draws, OnPage
from suite.show.pages import markup
from suite.topics.studies.studies_on_board import PlacedStudy, mark, placed_studies


def links(placed: Iterable[PlacedStudy]) -> dict[str, str]:
    """Returns links to the studies by technique id."""
    by_technique: dict[str, list[str]] = {}
    for spot in placed:
        link = f"{markup.link(spot.anchor, in_html(spot.title))}{mark(spot)}"
        by_technique.setdefault(spot.study.technique, []).append(link)
    return {id: ", ".join(links) for id, links in by_technique.items()}


def _drawn(studies: Mapping[str, str]) -> Draws:
    def part(stack: str, placed: object) -> str:
        own = ", ".join(studies[name] for name in Spelling(stack).names if name in studies)
        return f"<p>Studies: {own}</p>" if own else ""

    return part


ON_PAGE = OnPage(100, lambda report: _drawn(links(placed_studies(report.studies, report.cards, report.placed))))
