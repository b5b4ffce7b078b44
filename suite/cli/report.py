"""Commands that read records: leaderboard, claims, history, export."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from suite.cli.shared import (
    RESULTS,
    Baselines,
    Exit,
    Json,
    Out,
    Techniques,
    app,
    bar,
    chosen,
    err,
    escape,
    fail,
    many,
    out,
    understandable,
    warn,
)


@app.command()
def leaderboard(
    folder: Out = RESULTS,
    write: Annotated[Path, typer.Option("--write", help="The Markdown file to write.")] = Path("leaderboard.md"),
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Write the leaderboard from the records of the results folder."""
    from suite.record.files import replacing

    with understandable(as_json):
        from suite.contract.catalogue import catalogue
        from suite.record.store import Store

        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        made, unreadable = importlib.import_module("suite.measure.study").read_studies(folder)
        for problem in unreadable:
            warn(problem)
        if not records and not made:
            fail(f"{folder} holds no records; measure some with: leantrain run --out {folder}", Exit.NOTHING, as_json)
        results = importlib.import_module("suite.judge.rows")
        current = results.current_sources()
        studied = [(study, study.stale(current)) for study in made]
        calibrations, unreadable = importlib.import_module("suite.guard.calibration").beside(folder)
        for problem in unreadable:
            warn(problem)
        rows = results.rows(records)
        judged = importlib.import_module("suite.judge.claims").verdicts(rows)
        cards = {id: entry.card for id, entry in catalogue().items()}
        for form, target in (("markdown", write), ("html", html)):
            if target:
                page = importlib.import_module(f"suite.show.{form}")
                with replacing(target) as partial:
                    partial.write_text(page.render(rows, problems, judged, calibrations, cards, studied), "utf-8")
    if as_json:
        print(json.dumps([results.as_dict(row) for row in rows], indent=1))
    else:
        told = f"{many(len(rows), 'row')} from {many(len(records), 'replicate')}"
        out.print(f"{told}: {write}{f' and {html}' if html else ''}")


@app.command()
def claims(
    id: Annotated[str | None, typer.Argument(help="A technique's id, or one claim: technique.claim. [all]")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count the exact claims now, without records.")] = False,
    on: Baselines = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="With --exact: nano, or a larger one, counted without values. [nano]"),
    ] = None,
    folder: Out = RESULTS,
    as_json: Json = False,
) -> None:
    """Judge the papers' claims by the records: verdict, interval, evidence, and the command that reproduces it.

    Exit code 1 if a claim is contradicted, 3 if one claim was asked for and the records cannot decide it.
    """
    with understandable(as_json):
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import lookup
        from suite.record.job import SIZES
        from suite.record.store import Store

        engine = importlib.import_module("suite.judge.claims")
        cards = engine.chosen(id)
        for name in on or ():
            lookup("baseline", name, baselines())
        if size is not None and not exact:
            raise ValueError("--size says where exact claims are counted: add --exact, or leave it out")
        if exact:
            at = chosen("size", size or "nano", SIZES)
            found = importlib.import_module("suite.measure.exact").exact_verdicts(cards, tuple(on or baselines()), at)
        else:
            records, problems = Store(folder).read()
            for problem in problems:
                warn(problem)
            found = engine.verdicts(importlib.import_module("suite.judge.rows").rows(records), cards)
            found = [each for each in found if not on or each.baseline in ("", *on)]
    words = {each.word for each in found}
    if not words:
        fail("none of these claims is exact on these baselines" if exact else "no claims here", Exit.NOTHING, as_json)
    if as_json:
        print(json.dumps([each.as_dict() for each in found], indent=1))
    else:
        grid = Table(*engine.COLUMNS, box=None, pad_edge=False)
        for line in engine.table(found):
            grid.add_row(*map(escape, line))
        out.print(grid)
        out.print("; ".join(f"{count} {word}" for word, count in engine.counts(found).items()))
        if id is not None:
            for each in found:
                records_of = f" (records {' '.join(each.evidence)})" if each.evidence else ""
                out.print(escape(f"{each.claim.id}, {each.place.title or 'quoted'}: {each.command}{records_of}"))
    if "contradicted" in words:
        raise typer.Exit(int(Exit.REGRESSED))
    if id is not None and "." in id and words <= {"inconclusive", "not testable here"} and "inconclusive" in words:
        raise typer.Exit(int(Exit.INCONCLUSIVE))


@app.command()
def history(
    stacks: Techniques = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="step_time, training_time, loss, peak_tensor_bytes or flops; repeatable. [all]"),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Compare afresh what seems to have changed, before calling it an alarm.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Replicates of a confirming comparison.")] = 5,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="For all confirming comparisons.")] = 10.0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the series and their steps to this file.")] = None,
    folder: Out = RESULTS,
    as_json: Json = False,
) -> None:
    """Find where a technique's ratios changed over time: steps beyond chance, in the records of the results folder.

    Exit code 1 for a confirmed change for the worse, 3 for one that is only suspected: --confirm decides it.
    """
    with understandable(as_json):
        from suite.contract.stack import build
        from suite.record.job import canonical
        from suite.record.store import Store

        times = importlib.import_module("suite.judge.history")
        metrics = [chosen("metric", each, times.METRICS) for each in metric or times.METRICS]
        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        found = times.series(records, list(map(canonical, stacks or ())), metrics)
        if not found:
            for stack in stacks or ():  # a technique that is gone still has its history
                build(stack)
            fail(f"{folder} holds no such ratios; measure some: leantrain run --out {folder}", Exit.NOTHING, as_json)
        steps = times.changes(found)
        if confirm and steps:
            with bar(quiet=as_json) as progress:
                steps = times.confirm(steps, folder, minutes=minutes, seeds=seeds, progress=progress, warn=warn)
        if plot:
            times.draw(found, steps, plot)
    if as_json:
        print(json.dumps([each.as_dict() for each in steps], indent=1))
    else:
        for each in steps:
            out.print(escape(each.sentence()))
        out.print(escape(times.summary(found, steps)))
    if times.alarms(steps):
        raise typer.Exit(int(Exit.REGRESSED))
    if any(each.last and each.shift > 0 and each.status in ("suspected", "undecided") for each in steps):
        raise typer.Exit(int(Exit.INCONCLUSIVE))


@app.command()
def export(
    form: Annotated[str, typer.Option("--format", help="csv, parquet, or model-index (for a model card).")] = "csv",
    table: Annotated[str, typer.Option("--table", help="Of csv and parquet: rows, or replicates (seeds).")] = "rows",
    write: Annotated[
        Path | None, typer.Option("--write", help="The file; without it, printed. Of a model card all else is kept.")
    ] = None,
    techniques: Techniques = None,
    on: Baselines = None,
    folder: Out = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print errors as JSON, too.")] = False,
) -> None:
    """Give the results to other tools: tidy tables, or the evaluation results of a Hugging Face model card.

    In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    with understandable(as_json):
        exports = importlib.import_module("suite.show.export")
        chosen("format", form, exports.FORMATS)
        chosen("table", table, exports.TABLES)
        if form == "parquet" and write is None:
            raise ValueError("Parquet is for a file: name one with --write")
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import lookup
        from suite.contract.stack import build
        from suite.record.files import replacing
        from suite.record.job import canonical
        from suite.record.store import Store

        for stack in techniques or ():
            build(stack)
        for name in on or ():
            lookup("baseline", name, baselines())
        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        wanted = set(map(canonical, techniques or ()))
        rows = [
            row
            for row in importlib.import_module("suite.judge.rows").rows(records)
            if (not wanted or row.stack in wanted) and (not on or row.conditions.baseline in on)
        ]
        if not rows:
            fail(f"{folder} holds no such records; measure some with: leantrain run", Exit.NOTHING, as_json)
        existing = write.read_text("utf-8") if form == "model-index" and write and write.exists() else ""
        content = exports.exported(rows, form, table, existing)
        if write is None:
            sys.stdout.write(content.decode())
            return
        with replacing(write) as partial:
            partial.write_bytes(content)
    err.print(f"{many(len(rows), 'row')} from {many(len(records), 'replicate')}: {write}")
