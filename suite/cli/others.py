"""Has the command that judges what others published of a technique's quality."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer

from suite.cli.options import Json, looking_up
from suite.cli.shared import MORE, app, escape, out, show_table, understandable


def _known(incomplete: str) -> list[str]:
    from suite.topics.published_quality.quality_rows import quality_by_technique

    return [name for name in quality_by_technique() if name.startswith(incomplete)]


@app.command(rich_help_panel=MORE)
def published(
    technique: Annotated[
        str | None,
        typer.Argument(help="A technique's id, name or paper. [all, a line each]", autocompletion=_known),
    ] = None,
    as_json: Json = False,
) -> None:
    """Quality at real scale that others published of a technique, as judged here: interval, power, equivalent budget.

    Nothing is run. Each row has its source, and says whether both sides were tuned and who measured.
    """
    with understandable(as_json):
        from suite.entries.cards import known_as, with_cards
        from suite.entries.catalogue import catalogue
        from suite.show.pages.rendered import as_markdown
        from suite.topics.published_quality.judged_quality import quality_by_others
        from suite.topics.published_quality.quality_on_page import section

        entries = list(with_cards(catalogue())[0].values())
        if technique is not None:
            with looking_up():
                entries = known_as(technique, {entry.id: entry for entry in entries})
        found = [(entry.card, known) for entry in entries if (known := quality_by_others(entry.id))]
    if as_json:
        said = {card.id: [_finite(asdict(one) | {"word": one.word}) for one in known.every] for card, known in found}
        print(json.dumps(said, indent=1))
    elif len(entries) > 1:
        lines = [(card.id, str(len(known.every)), known.words or "nothing at scale") for card, known in found]
        show_table(("technique", "rows", "on Transformers of 10 million parameters and more"), lines)
    elif found and (drawn := section(found[0][0])):
        print("\n".join(as_markdown(drawn, "#")))
    else:
        out.print(escape(f"Nothing that others published of the quality of {entries[0].id} is known."))


def _finite(value: object) -> object:
    """Replaces what JSON has no number for by None."""
    if isinstance(value, dict):
        return {key: _finite(of) for key, of in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
