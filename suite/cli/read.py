"""Has the commands that read records: leaderboard, claims, history."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suite.cli.options import (
    OF_SIZES,
    RESULTS,
    Baselines,
    Json,
    KnownResults,
    Techniques,
    check_stack,
    named,
    technique_names,
    words,
)
from suite.cli.shared import MEASURE, MORE, Exit, app, bar, escape, fail, many, out, show_table, understandable, warn

if TYPE_CHECKING:
    from suite.entries.card import Card
    from suite.judge.claims import Judgement
    from suite.topics.board.report import Report

SUFFIXES = {".md": "markdown", ".html": "html", ".svg": "svg", ".csv": "csv", ".parquet": "parquet"}
FORMS = (
    "markdown",
    "html",
    "svg",
    "badge",
    "findings",
    "csv",
    "parquet",
    "model-index",
    "eval-results",
    "every-eval-ever",
)


@app.command(rich_help_panel=MEASURE)
def leaderboard(
    write: Annotated[
        list[Path] | None,
        typer.Option(
            "--write",
            help="A file to write, by its suffix: .md, .html, .svg (two pictures), .csv, .parquet; "
            "repeatable. [leaderboard.md; with -t or -b it is printed]",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="markdown, html, svg, csv, parquet; badge: an SVG of one line for a README; findings: what the "
            "records show, in a README between two comments; model-index: the results in a Hugging Face model card "
            "(all else of both files is kept); eval-results: its .eval_results YAML; or every-eval-ever: JSON. Without "
            "--write it is printed. [by suffix]",
            autocompletion=words(*FORMS),
        ),
    ] = None,
    table: Annotated[
        str,
        typer.Option(
            "--table",
            help="Of csv and parquet: rows, or replicates (seeds and timings).",
            autocompletion=words("rows", "replicates"),
        ),
    ] = "rows",
    benchmark: Annotated[
        str,
        typer.Option(
            "--benchmark",
            metavar="OWNER/NAME",
            help="Of eval-results: the data set of the Hub to which leantrain publish wrote the records.",
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Write over a board of other records, or over any other file.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            help="Draw this of every board to the one file of --write (.svg, .pdf, .png): pareto (time against "
            "memory), forest (speedups with intervals), ruler (all on the reference's scaling curve), curves (losses).",
        ),
    ] = None,
    techniques: Techniques = None,
    on: Baselines = None,
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Write the leaderboard from the records of the results folder: boards for people, tables for other tools.

    A Markdown file of all records is a front page; its boards are written into `boards` in the results folder. A board
    takes the place of an earlier one of the same results; that of others only with --replace.

    In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    with understandable(as_json):
        from suite.entries.setting import chosen
        from suite.judge.rows import as_dict
        from suite.record.job import canonical
        from suite.record.text import lines
        from suite.topics.board import written
        from suite.topics.board.report import Report
        from suite.topics.publish.export import TABLES

        names = (*(techniques or ()), *(on or ()))
        if plot:
            _check_plot(plot, form, write)
        if plot or (as_json and not (write or form)):  # rows as JSON write nothing that nobody asked for
            targets: list[tuple[Any, Path | None]] = []
        elif names and not (write or form):  # a board of a few is for the terminal
            targets = [("markdown", None)]
        else:
            targets = _targets(write, chosen("format", form, FORMS) if form else None)
        kind = chosen("table", table, TABLES)
        if techniques:
            from suite.entries.together import built

            for stack in techniques:
                built(stack)
        report = Report.read(folder, set(map(canonical, techniques or ())), on or ())
        for problem in (*report.problems, *report.unreadable):
            warn(problem)
        if not report.rows and not (report.studies and all(form in written.PAGES for form, _ in targets)):
            none = "no such records" if report.records else "no records"
            fail(f"{folder} holds {none}; measure some with: leantrain run --results {folder}", Exit.NOTHING, as_json)
        if plot and write:
            _draw(report, plot, write[0])
        text = written.write(report, targets, folder, names, written.Details(kind, benchmark), replace)
        if text is not None:
            sys.stdout.write(lines(text) if sys.stdout.isatty() else text)
            return
    if as_json:
        print(json.dumps([as_dict(row) for row in report.rows], indent=1))
    else:
        files = ", ".join(map(str, write or (path for _, path in targets)))
        out.print(f"{many(len(report.rows), 'row')} from {many(report.records, 'record')}: {files}")


def _check_plot(plot: str, form: str | None, write: list[Path] | None) -> None:
    """Raises UnknownId for a plot that does not exist, ValueError where it is not of one file."""
    from suite.entries.setting import chosen
    from suite.show.pictures.drawing import check_format
    from suite.topics.board.plots import PLOTS

    chosen("plot", plot, tuple(PLOTS))
    if form or write is None or len(write) != 1:
        raise ValueError("--plot draws one file: name it with --write, and leave --format out")
    check_format(write[0])


def _draw(report: Report, plot: str, path: Path) -> None:
    from suite.show.pictures.drawing import save
    from suite.topics.board.plots import of_boards

    save(of_boards(report, plot), path)


def _targets(paths: list[Path] | None, form: str | None) -> list[tuple[Any, Path | None]]:
    """Tells what to write where; no path where it is to be printed. Raises ValueError, with the way out."""
    if form is None:
        paths = paths or [Path("leaderboard.md")]
        for path in paths:
            if path.suffix not in SUFFIXES:
                raise ValueError(f"{path}: a suffix says what to write: {', '.join(SUFFIXES)}; or say it with --format")
        return [(SUFFIXES[path.suffix], path) for path in paths]
    if len(paths or ()) > 1:
        raise ValueError("--format is of one file: leave it out, and each file's suffix says what to write")
    if form == "parquet" and not paths:
        raise ValueError("Parquet is for a file: name one with --write")
    return [(form, paths[0] if paths else None)]


def _techniques_and_claims(incomplete: str) -> list[str]:
    from suite.entries.catalogue import catalogue

    names = list(catalogue())
    if (id := incomplete.partition(".")[0]) in names:
        names += [f"{id}.{claim.id}" for claim in catalogue()[id].card.judged]
    return [name for name in names if name.startswith(incomplete)]


@app.command(rich_help_panel=MORE)
def claims(
    context: typer.Context,
    id: Annotated[
        str | None,
        typer.Argument(
            help="A technique's id, or one claim or property: sam.radius; with --exact also sam:adaptive=true. [all]",
            autocompletion=_techniques_and_claims,
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count the exact claims now, without records.")] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Break each technique on purpose, and see which exact claim notices.")
    ] = False,
    on: Baselines = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            help="With --exact: nano, or a larger one, counted without values. [nano]",
            **OF_SIZES,
        ),
    ] = None,
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Judge the papers' claims by the records: outcome, distance from the paper's setting, interval, evidence, and the
    command that repeats it.

    Only near the paper's setting, and of a statement that somebody read there, a claim is reproduced or contradicted.
    Far from it, it holds at a size, or is not seen at it.

    What an implementation must satisfy besides (its properties) is judged too, and counted apart.

    With --mutants: each method of a technique is taken away, and each edit in its mutants.toml is made, one at a time;
    a mutant that no claim notices survives.

    Exit code 1 if a claim is contradicted, one that --exact counts does not hold, or a mutant survives; 3 if one claim
    was asked for and the records cannot decide it.
    """
    with understandable(as_json):
        from suite.entries.catalogue import lookup
        from suite.entries.installed import baselines
        from suite.judge import claims as judging
        from suite.judge.verdicts import FAILS
        from suite.topics.claims.from_records import judged

        name, _, settings = (id or "").partition(":")
        if settings and not exact:
            raise ValueError("records and mutants are of the card's own hyper-parameters: for others add --exact")
        if (exact or mutants) and named(context, "folder"):
            raise ValueError("--results says where records are, and --exact and --mutants read none: leave it out")
        if mutants and (exact or size is not None):
            raise ValueError("--mutants counts exact claims where its mutants show: leave out --exact and --size")
        cards = judging.chosen(name or None)
        for baseline in on or ():
            lookup("baseline", baseline, baselines())
        if mutants:
            return _try_mutants([card.id for card in cards], tuple(on or baselines()), as_json)
        if size is not None and not exact:
            raise ValueError("--size says where exact claims are counted: add --exact, or leave it out")
        if exact:
            judgements = _counted(cards, tuple(on or baselines()), size or "nano", settings, as_json)
        else:
            judgements = judged(folder, cards, on or (), warn)
    outcomes = {judgement.outcome for judgement in judgements}
    if not outcomes:
        fail("none of these claims is exact on these baselines" if exact else "no claims here", Exit.NOTHING, as_json)
    if as_json:
        print(json.dumps([judgement.as_dict() for judgement in judgements], indent=1))
    else:
        _show_judged(judgements, with_commands="." in name)
    if any(judgement.contradicted or (exact and judgement.outcome == FAILS) for judgement in judgements):
        raise typer.Exit(int(Exit.REGRESSED))
    open_ones = {"undecided", "not exercised", "tuning open"}
    if "." in name and outcomes & open_ones and outcomes <= open_ones | {"not measured"}:
        raise typer.Exit(int(Exit.INCONCLUSIVE))


def _counted(cards: list[Card], on: Sequence[str], size: str, settings: str, as_json: bool) -> list[Judgement]:
    """Returns the verdicts on the exact claims, counted now."""
    from suite.entries.setting import chosen
    from suite.measure.exact import exact_verdicts
    from suite.record.job import SIZES

    at = chosen("size", size, SIZES)
    with bar(quiet=as_json) as progress:
        return exact_verdicts(cards, on, at, settings, progress)


def _show_judged(judgements: Sequence[Judgement], with_commands: bool) -> None:
    """Prints the verdicts, the worst first, and how to repeat each where that is asked for."""
    from suite.topics.claims import claims_on_board as showing

    by_worth = showing.sort(judgements)
    for title, part in by_worth.parts:
        show_table(showing.columns(title), [line.cells for line in part], title=title, whole=(0, 1))
    out.print(by_worth.sentence)
    for judgement in judgements if with_commands else ():
        records = f" (records {' '.join(judgement.evidence)})" if judgement.evidence else ""
        said = f"{judgement.claim.id}, {judgement.basis.title or 'quoted'}: {judgement.command}{records}"
        out.print(escape(said))


def _try_mutants(ids: Sequence[str], on: Sequence[str], as_json: bool) -> None:
    """Prints what notices each mutant. Raises typer.Exit if one survives."""
    from suite.entries.catalogue import catalogue
    from suite.measure.learning import cores
    from suite.measure.mutants import noticed, processes

    with bar(quiet=as_json) as progress, processes(min(cores(), len(ids))) as pool:
        notices = list(noticed([catalogue()[id] for id in ids], on, pool, progress))
    survivors = [notice for notice in notices if notice.survives]
    if as_json:
        print(json.dumps([notice.as_dict() for notice in notices], indent=1))
    else:
        by_worth = sorted(notices, key=lambda notice: (not notice.survives, notice.mutant.technique))
        lines = [(notice.mutant.technique, notice.mutant.name, notice.sentence) for notice in by_worth]
        show_table(("technique", "mutant", "noticed by"), lines)
        out.print(f"{len(notices) - len(survivors)} of {len(notices)} mutants noticed, {len(survivors)} survive")
    if survivors:
        raise typer.Exit(int(Exit.REGRESSED))


@app.command(rich_help_panel=MORE)
def history(
    stacks: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--technique",
            help="A technique or a stack, also one that is gone; repeatable. [all]",
            autocompletion=technique_names,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="A metric that has a history, e.g. step_time or loss; repeatable. [all]"),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Compare afresh what seems to have changed, before calling it an alarm.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Seeds, and timings, of a confirming comparison.")] = 5,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="For all confirming comparisons.")] = 10.0,
    write: Annotated[
        Path | None, typer.Option("--write", help="Draw the series and their steps to this file (.svg, .pdf, .png).")
    ] = None,
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Find where a technique's ratios changed over time: steps beyond chance, in the records of the results folder.

    Exit code 1 for a confirmed change for the worse, 3 for one that is only suspected: --confirm decides it.
    """
    with understandable(as_json):
        from suite.record.job import Spelling, canonical
        from suite.record.store import Store

        store = Store(folder)
        for stack in stacks or ():  # a technique that is gone still has its history
            if not all(map(store.mentions, Spelling(stack).names)):
                check_stack(stack)
        from suite.entries.setting import chosen
        from suite.topics.history import change_points as times

        if write:
            from suite.show.pictures.drawing import check_format
            from suite.topics.history.timelines import draw

            check_format(write)
        metrics = [chosen("metric", name, times.METRICS) for name in metric or times.METRICS]
        records, problems = store.read()
        all_series = times.series(records, list(map(canonical, stacks or ())), metrics, problems)
        for problem in problems:
            warn(problem)
        if not all_series:
            from suite.entries.together import built

            for stack in stacks or ():
                built(stack)
            fail(
                f"{folder} holds no such ratios; measure some: leantrain run --results {folder}", Exit.NOTHING, as_json
            )
        steps = times.change_points(all_series)
        if confirm and steps:
            from suite.topics.history.confirm import confirm as confirmed

            with bar(quiet=as_json) as progress:
                steps = confirmed(steps, folder, minutes=minutes, seeds=seeds, progress=progress, warn=warn)
        if write:
            draw(all_series, steps, write)
    if as_json:
        print(json.dumps([step.as_dict() for step in steps], indent=1))
    else:
        for step in steps:
            out.print(escape(step.sentence()))
        out.print(escape(times.summary(all_series, steps)))
    if times.alarms(steps):
        raise typer.Exit(int(Exit.REGRESSED))
    if any(step.last and step.shift > 0 and step.verdict == "inconclusive" for step in steps):
        raise typer.Exit(int(Exit.INCONCLUSIVE))
