"""Shows links to a technique's studies, on its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from suite.record.job import Spelling
from suite.show.pages.markup import fragments
from suite.show.pages.rendered import macros_beside
from suite.topics.on_board import Draws, OnPage
from suite.topics.studies.studies_on_board import PlacedStudy, mark, placed_studies

DRAWN = macros_beside(__file__)


def links(placed: Iterable[PlacedStudy]) -> dict[str, Markup]:
    """Returns links to the studies by technique id."""
    by_technique: dict[str, list[Markup]] = {}
    for spot in placed:
        link = fragments.link(spot.anchor, spot.title) + mark(spot)
        by_technique.setdefault(spot.study.technique, []).append(link)
    return {id: Markup(", ").join(links) for id, links in by_technique.items()}


def _drawn(studies: Mapping[str, Markup]) -> Draws:
    def part(stack: str, placed: object) -> Markup:
        own = [studies[name] for name in Spelling(stack).names if name in studies]
        return DRAWN.studies(own) if own else Markup()

    return part


ON_PAGE = OnPage(
    100, lambda report: _drawn(links(placed_studies(report.studies, report.cards, report.placed))), "Studies"
)
