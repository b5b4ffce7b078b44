"""Has the command that tries every technique on every model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from suite.cli.options import RESULTS, Json, Results, Techniques
from suite.cli.shared import MORE, Exit, app, bar, escape, out, show_table, understandable


def _models(incomplete: str) -> list[str]:
    from suite.topics.models.survey import models as known

    return [name for name in known() if name.startswith(incomplete)]


@app.command(rich_help_panel=MORE)
def models(
    techniques: Techniques = None,
    on: Annotated[
        list[str] | None,
        typer.Option("-m", "--model", help="A model of the matrix; repeatable. [all]", autocompletion=_models),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Try also what the results folder knows already.")] = False,
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Try every technique on tiny models of every family: does it attach, train and change something, or refuse?

    Only what is new or changed is tried; the rest is in the results folder, from which the leaderboard takes it. Exit
    code 1 if a technique silently does nothing, fails in words that are not its own, or breaks an identity of its card.
    """
    with understandable(as_json):
        from suite.topics.models import survey
        from suite.topics.models import tried_models as matrix

        earlier = matrix.read(folder) or matrix.ModelsMatrix()

        def keep(tried: matrix.ModelsMatrix) -> None:
            matrix.write(earlier.with_newer(tried), folder)

        with bar(quiet=as_json) as progress:
            known = matrix.ModelsMatrix() if again else earlier
            tried = survey.survey(techniques or (), on or (), known, keep, progress)
    defects = tried.defects()
    if as_json:
        print(
            json.dumps({"tally": tried.tally(), **tried.model_dump(mode="json", include={"models", "cells"})}, indent=1)
        )
    else:
        lines = []
        for technique, row in tried.cells.items():
            verdicts = [cell.verdict for cell in row.values()]
            lines.append((technique, *(str(verdicts.count(verdict)) for verdict in matrix.VERDICTS)))
        show_table(("technique", "works on", "refused on", "defects"), lines)
        for defect in defects:
            out.print(escape(f"defect: {defect.technique} on {defect.model}: {defect.cell.reason}"))
        out.print(f"{tried.tally()}; kept in {folder / matrix.NAME}")
    if defects:
        raise typer.Exit(int(Exit.REGRESSED))
