"""Shows on which models of other architectures a technique works, for its page: a line, and why not on the others."""

from __future__ import annotations

from suite.show.described import Folded, Item, Items, Part, Section
from suite.show.pages.rendered import as_html
from suite.topics.models.models_on_board import Shown, line_of, reasons
from suite.topics.models.tried_models import WORDS
from suite.topics.on_board import OnPage

TITLE = "On other models"


def section(technique: str, shown: Shown | None) -> Section | None:
    """Builds the section of one technique; None where it was not tried."""
    if shown is None or technique not in shown.matrix.cells:
        return None
    own = shown.matrix.only([technique], shown.matrix.models)
    why = [Item(f" {WORDS[one.verdict]}: {one.words}", ", ".join(one.models)) for one in reasons(own) if one.models]
    parts: list[Part] = [Folded("Why not on the others", [Items(why)], len(why))] if why else []
    return Section(f"{technique}--models", TITLE, line_of(technique, shown), parts, is_open=True)


ON_PAGE = OnPage(67, lambda report: lambda stack, placed: as_html(section(stack, report.models), rank=4), TITLE)
