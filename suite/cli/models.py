"""Has the command that tries every technique on every model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suite.cli.options import RESULTS, Json, Results, Techniques
from suite.cli.shared import MORE, Exit, app, bar, escape, out, show_table, understandable
from suite.record.files import replacing

if TYPE_CHECKING:
    from suite.topics.models.tried_models import ModelsMatrix


def _models(incomplete: str) -> list[str]:
    from suite.topics.models.survey import models as known

    return [name for name in known() if name.startswith(incomplete)]


def _write(page: Path, tried: ModelsMatrix) -> None:
    from suite.topics.models import models_page
    from suite.topics.models.models_on_board import Shown
    from suite.topics.models.tried_models import stale

    with replacing(page) as partial:
        partial.write_text(models_page.render(Shown(tried, stale(tried))), "utf-8")


@app.command(rich_help_panel=MORE)
def models(
    own: Annotated[
        Path | None,
        typer.Argument(metavar="[MY_FOLDER]", help="Your own model: a folder with its config.json. [the families]"),
    ] = None,
    techniques: Techniques = None,
    on: Annotated[
        list[str] | None,
        typer.Option("-m", "--model", help="A model of the matrix; repeatable. [all]", autocompletion=_models),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Try also what the results folder knows already.")] = False,
    page: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write all cells as an HTML page with filters.")
    ] = None,
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Try every technique on tiny models of every family: does it attach, train and change something, or refuse?

    Only what is new or changed is tried; the rest is in the results folder, from which the leaderboard takes it, and an
    interrupted command goes on. With MY_FOLDER your own model is tried, as large as its config.json says, and nothing
    is kept. Exit code 1 if a technique silently does nothing, fails in words that are not its own, or breaks an
    identity of its card.
    """
    with understandable(as_json):
        from suite.topics.models import survey
        from suite.topics.models import tried_models as matrix

        if own is not None and on:
            raise ValueError("MY_FOLDER and --model: give one of them, your own model or models of the matrix")
        earlier = matrix.read(folder) or matrix.ModelsMatrix()

        def keep(tried: matrix.ModelsMatrix) -> None:
            matrix.write(earlier.with_newer(tried), folder)

        with bar(quiet=as_json) as progress:
            if own is not None:
                found = survey.survey_folder(own.expanduser(), techniques or (), progress)
            else:
                known = matrix.ModelsMatrix() if again else earlier
                found = survey.survey(techniques or (), on or (), known, keep, progress)
        tried = found.matrix
        if page is not None:
            _write(page, earlier.with_newer(tried) if own is None else tried)
    if as_json:
        content = tried.model_dump(mode="json", include={"models", "cells"})
        print(json.dumps({"tally": tried.tally(), **content}, indent=1))
    else:
        cost = f"{found.tried} cells tried in {found.cpu_s:.0f} CPU-seconds" if found.tried else "nothing is new"
        where = "" if own is not None else f"; kept in {folder / matrix.NAME}"
        _show(tried, f"{cost}{where}", own is not None)
    if tried.defects():
        raise typer.Exit(int(Exit.REGRESSED))


def _show(tried: ModelsMatrix, cost: str, each: bool) -> None:
    """Prints a line for each cell, or one for each technique; the defects; and a sentence."""
    from suite.topics.models.tried_models import VERDICTS, WORDS

    if each:
        cells = [(spot.technique, WORDS[spot.cell.verdict], spot.cell.reason) for spot in tried.placed()]
        show_table(("technique", "", "why"), cells)
    else:
        lines = []
        for technique, row in tried.cells.items():
            verdicts = [cell.verdict for cell in row.values()]
            lines.append((technique, *(str(verdicts.count(verdict)) for verdict in VERDICTS)))
        show_table(("technique", "works on", "refuses", "does not apply", "defects"), lines)
    for defect in tried.defects():
        out.print(escape(f"defect: {defect.technique} on {defect.model}: {defect.cell.reason}"))
    out.print(escape(f"{tried.tally()}; {cost}"))
