"""The command that tries every technique on every model."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from suite.cli.options import RESULTS, Json, Results, Techniques
from suite.cli.shared import Exit, app, bar, escape, out, understandable


def _models(incomplete: str) -> list[str]:
    from suite.guard.models.survey import models as known

    return [name for name in known() if name.startswith(incomplete)]


@app.command()
def models(
    techniques: Techniques = None,
    on: Annotated[
        list[str] | None,
        typer.Option("-m", "--model", help="A model of the matrix; repeatable. [all]", autocompletion=_models),
    ] = None,
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Try every technique on tiny models of every family: does it attach, train and change something, or refuse?

    What was tried before is kept beside it, in the results folder, for the leaderboard. Exit code 1 if a technique
    silently does nothing, fails in words that are not its own, or breaks an exact claim of its paper.
    """
    with understandable(as_json):
        from suite.contract.catalogue import catalogue
        from suite.guard.models import matrix, survey
        from suite.record.job import BASELINE

        earlier = matrix.read(folder)
        with bar(quiet=as_json) as progress:
            tried = survey.survey(techniques or (), on or (), progress)
        whole = earlier.with_newer(tried) if earlier else tried
        path = matrix.write(whole.only({BASELINE, *catalogue()}, survey.models()), folder)
    defects = tried.defects()
    if as_json:
        print(
            json.dumps({"tally": tried.tally(), **tried.model_dump(mode="json", include={"models", "cells"})}, indent=1)
        )
    else:
        grid = Table("technique", "works on", "refused by", "defects", box=None, pad_edge=False)
        for technique, row in tried.cells.items():
            counts = [[each.verdict for each in row.values()].count(verdict) for verdict in matrix.VERDICTS]
            grid.add_row(technique, *map(str, counts))
        out.print(grid)
        for each in defects:
            out.print(escape(f"defect: {each.technique} on {each.model}: {each.cell.reason}"))
        out.print(f"{tried.tally()}; kept in {path}")
    if defects:
        raise typer.Exit(int(Exit.REGRESSED))
