"""The command line: commands only, each a thin shell around the module that does the work."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


class Exit(IntEnum):
    """What a command's exit code says."""

    FINE = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNFIT = 4
    RUN_FAILED = 5
    NOTHING = 6
    INTERRUPTED = 130  # as shells say of Ctrl-C


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # rich's own markup would swallow [defaults] in brackets
    help="Which published ways to train a Transformer faster, smaller, cheaper really help: measured, with intervals.",
)
out = Console(width=None if sys.stdout.isatty() else 200, soft_wrap=not sys.stdout.isatty(), highlight=False)
err = Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Baselines = Annotated[
    list[str] | None, typer.Option("-b", "--baseline", help="bert, gpt, vit or mae; repeatable. [all]")
]
Techniques = Annotated[
    list[str] | None,
    typer.Option("-t", "--technique", help="An id or a stack like lion+sam:rho=0.1; repeatable. [all]"),
]
SizeOption = Annotated[str, typer.Option("--size", help="nano, micro, base or large.")]
TaskOption = Annotated[str | None, typer.Option("--task", help="pretrain or adapt. [what the technique's card says]")]
Steps = Annotated[int | None, typer.Option("--steps", min=2, help="Training steps of the reference. [the baseline's]")]
DataOption = Annotated[
    str | None, typer.Option("--data", help="A Hugging Face data set id, or a local file or folder. [embedded data]")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="A Hugging Face configuration folder or a timm model name. [the baseline's]"),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="CPU threads of a contender.")]
Out = Annotated[Path, typer.Option("--out", help="The results folder.")]
Margin = Annotated[float, typer.Option("--margin", min=0.001, help="The slow-down that is worth an alarm.")]
Budget = Annotated[float, typer.Option("--budget", min=1, help="Seconds of timing that one item may take.")]
Limit = Annotated[float, typer.Option("--time-limit", min=1, help="Seconds that one contender may train in all.")]
Hang = Annotated[float, typer.Option("--hang-limit", min=0.1, help="Seconds of silence that end a contender as hung.")]
Sequential = Annotated[
    bool, typer.Option("--sequential", help="One contender in memory at a time: fits more, pairs less.")
]
Wandb = Annotated[
    bool,
    typer.Option("--wandb", help="Also send to Weights & Biases: as WANDB_MODE says; without a login to local files."),
]

RESULTS = Path("results")
THREADS = 1  # more would wait for each other whenever a neighbour takes a core


def fail(message: str, code: Exit, as_json: bool = False) -> NoReturn:
    """One clear sentence on standard error, and the exit code that says what kind of trouble it is."""
    if as_json:
        print(json.dumps({"error": message, "exit_code": int(code)}))
    err.print(f"[red]leantrain:[/red] {escape(message)}")
    raise typer.Exit(int(code))


def escape(text: str) -> str:
    return text.replace("[", r"\[")


@contextmanager
def understandable(as_json: bool = False) -> Iterator[None]:
    """Turns the errors that a user can mend into one sentence and an exit code."""
    from suite.anatomy import NoBlocks
    from suite.card import CardError
    from suite.catalogue import UnknownId
    from suite.contender import ContenderFailed
    from suite.records import StoreError
    from suite.stack import StackError
    from suite.technique import Unavailable

    try:
        yield
    except UnknownId as error:
        fail(str(error.args[0]), Exit.USAGE, as_json)
    except (StackError, CardError, NoBlocks, LookupError, FileNotFoundError, FileExistsError, ValueError) as error:
        fail(str(error), Exit.USAGE, as_json)
    except Unavailable as error:
        fail(str(error), Exit.UNFIT, as_json)
    except (StoreError, ContenderFailed) as error:
        fail(str(error), Exit.RUN_FAILED, as_json)
    except KeyboardInterrupt:
        fail("interrupted; what was measured is kept, the same command continues", Exit.INTERRUPTED, as_json)


def chosen(kind: str, value: str, among: tuple[str, ...]) -> Any:
    from suite.catalogue import lookup

    return lookup(kind, value, {each: each for each in among})


def usable_device(device: str, as_json: bool) -> None:
    import torch

    if chosen("device", device, ("cpu", "cuda")) == "cuda" and not torch.cuda.is_available():
        why = "torch was built without CUDA" if not torch.backends.cuda.is_built() else "torch sees no CUDA GPU"
        fail(f"--device cuda: {why} on this machine; leave the option out to run on the CPU", Exit.UNFIT, as_json)


@app.command("list")
def list_(
    category: Annotated[str | None, typer.Argument(help="Only this category.")] = None, as_json: Json = False
) -> None:
    """List the techniques: what they change, on which baselines, against what."""
    with understandable(as_json):
        from suite.catalogue import catalogue, lookup

        entries = list(catalogue().values())
        if category is not None:
            lookup("category", category, {entry.card.category: entry for entry in entries})
            entries = [entry for entry in entries if entry.card.category == category]
    if as_json:
        print(json.dumps([entry.card.model_dump(mode="json", exclude={"claim"}) for entry in entries], indent=1))
        return
    table = Table("id", "category", "baselines", "task", "against", "what it changes", box=None, pad_edge=False)
    for column in table.columns[:2]:
        column.no_wrap = True
    for entry in entries:
        card = entry.card
        table.add_row(card.id, card.category, " ".join(card.baselines), card.task, card.reference, escape(card.summary))
    out.print(table)
    if not entries:
        raise typer.Exit(int(Exit.NOTHING))


@app.command()
def show(id: Annotated[str, typer.Argument(help="A technique's id.")], as_json: Json = False) -> None:
    """Show a technique's card: paper, variant, hyper-parameters, claims."""
    from dataclasses import MISSING, fields

    from suite.technique import CHAINED, SLOTS, overrides

    with understandable(as_json):
        from suite.catalogue import catalogue, lookup

        entry = lookup("technique", id, catalogue())
        card, cls = entry.card, entry.technique
    settings = {each.name: None if each.default is MISSING else each.default for each in fields(cls) if each.init}
    changes = [method for method in (*SLOTS, *CHAINED) if overrides(cls, method)]
    if as_json:
        extra = {"hyper_parameters": settings, "overrides": changes, "source_sha256": entry.source_sha256}
        print(json.dumps(card.model_dump(mode="json") | extra, indent=1, default=str))
        return
    out.print(f"[bold]{escape(card.name)}[/bold]  ({card.category}/{card.id})\n{escape(card.summary)}\n")
    paper = card.paper
    out.print(escape(f"{paper.authors}: {paper.title}. {paper.venue}. {paper.arxiv and 'arXiv ' + paper.arxiv}"))
    out.print(f"baselines {' '.join(card.baselines)}; task {card.task}; compared with {card.reference}")
    out.print("overrides " + ", ".join(changes))
    out.print("hyper-parameters " + (", ".join(f"{key}={value}" for key, value in settings.items()) or "none"))
    for title, text in (
        ("Variant", card.variant), ("Limitations", card.limitations), ("Counter-evidence", card.counter_evidence),
    ):  # fmt: skip
        if text:
            out.print(f"\n[bold]{title}.[/bold] {escape(text.strip())}")
    for claim in card.claim:
        expected = "" if claim.expected is None else f" {claim.metric} {claim.relation} {claim.expected:g}"
        out.print(f"\n[bold]Claim {claim.id}[/bold] ({claim.kind}, {claim.scope}; {escape(claim.place)}){expected}")
        out.print(f"  {escape(claim.statement)}")


@app.command()
def run(
    techniques: Techniques = None,
    on: Baselines = None,
    size: SizeOption = "nano",
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="classic, modern or compiled; repeatable. [modern, then classic]"),
    ] = None,
    task: TaskOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds that each pair gets at most.")] = 3,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Stop in time for this budget.")] = 10.0,
    steps: Steps = None,
    data: DataOption = None,
    model: ModelOption = None,
    device: Device = "cpu",
    threads: Threads = THREADS,
    folder: Out = RESULTS,
    time_limit: Limit = 3600.0,
    hang_limit: Hang = 600.0,
    sequential: Sequential = False,
    wandb: Wandb = False,
    as_json: Json = False,
) -> None:
    """Measure what is not measured yet, or stale: every technique against its reference, most informative first.

    Results are appended to the results folder as they come; an interrupted run continues where it stopped.
    """
    with understandable(as_json):
        usable_device(device, as_json)
        from suite.baseline import RECIPES, SIZES, TASKS, baselines
        from suite.campaign import measure
        from suite.catalogue import build, catalogue, lookup
        from suite.plan import Setting, pairs_of

        entries, known = catalogue(), baselines()
        stacks = techniques or list(entries)
        for stack in stacks:
            build(stack)
        for name in on or ():
            lookup("baseline", name, known)
        recipes = [chosen("recipe", name, RECIPES) for name in recipe or ("modern", "classic")]
        setting = Setting(chosen("size", size, SIZES), steps, data, model, device, threads)
        if (data or model) and not on:
            raise ValueError("--data and --model belong to one kind of baseline: choose it with -b")
        pairs = pairs_of(stacks, on or known, recipes, chosen("task", task, TASKS) if task else None)
        if not pairs:
            fail("no technique of these names one of these baselines in its card", Exit.NOTHING, as_json)
        with tracking(wandb) as sent, bar(quiet=as_json) as progress:
            made = measure(
                pairs, setting, folder, seeds=seeds, minutes=minutes, limit_s=time_limit, hang_s=hang_limit,
                sequential=sequential, progress=progress, warn=warn, stored=sent,
            )  # fmt: skip
    failures = [each for record in made for each in record.contenders if each.status not in ("ok", "unavailable")]
    if as_json:
        print(json.dumps([json.loads(record.model_dump_json()) for record in made]))
    else:
        for each in failures:
            err.print(f"{escape(each.stack)}: {each.status}: {escape(each.reason)}")
        out.print(f"{many(len(made), 'replicate')} measured; see them with: leantrain leaderboard --out {folder}")
    if failures:
        raise typer.Exit(int(Exit.RUN_FAILED))


@contextmanager
def tracking(wanted: bool) -> Iterator[Any]:
    """What sends stored records to wandb, or None; says at the end, however it comes, where they are."""
    if not wanted:
        yield None
        return
    tracker = importlib.import_module("suite.tracking").Tracker(warn)
    try:
        yield tracker
    finally:
        err.print(escape(tracker.where))


def many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def warn(text: str) -> None:
    err.print(f"[yellow]{escape(text)}[/yellow]")


@contextmanager
def bar(quiet: bool) -> Iterator[Any]:
    """A progress bar on a terminal, a line per change of label elsewhere, nothing when quiet."""
    if quiet:
        yield lambda share, label: None
    elif err.is_terminal:
        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.description}"), console=err, transient=True) as progress:
            task = progress.add_task("", total=1.0)
            yield lambda share, label: progress.update(task, completed=share, description=escape(label))
    else:
        last = [""]

        def line(share: float, label: str) -> None:
            what = label.split(" (")[0]
            if what != last[0]:
                last[0] = what
                err.print(f"{100 * share:3.0f} % {escape(what)}")

        yield line


@app.command()
def compare(
    stack: Annotated[str, typer.Argument(help="The technique or stack, e.g. lion or lion+sam:rho=0.1.")],
    against: Annotated[
        str | None, typer.Argument(help="What to compare it with. [the reference its card names]")
    ] = None,
    on: Annotated[str, typer.Option("-b", "--baseline", help="bert, gpt, vit or mae.")] = "gpt",
    size: SizeOption = "nano",
    recipe: Annotated[str, typer.Option("--recipe", help="classic, modern or compiled.")] = "modern",
    task: TaskOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Replicates.")] = 3,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Stop in time for this budget.")] = 10.0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=2, help="Paired rounds of a replicate.")] = None,
    steps: Steps = None,
    data: DataOption = None,
    model: ModelOption = None,
    device: Device = "cpu",
    threads: Threads = THREADS,
    folder: Out = RESULTS,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw loss curves and paired ratios to this file.")
    ] = None,
    time_limit: Limit = 3600.0,
    hang_limit: Hang = 600.0,
    sequential: Sequential = False,
    wandb: Wandb = False,
    as_json: Json = False,
) -> None:
    """Compare two stacks head to head on one baseline, several seeds, and print the ratios with their intervals."""
    with understandable(as_json):
        usable_device(device, as_json)
        from suite.baseline import RECIPES, SIZES, TASKS, baselines
        from suite.campaign import measure
        from suite.catalogue import build, lookup
        from suite.comparison import canonical
        from suite.plan import Pair, Setting, reference_of
        from suite.records import Store

        build(stack), build(against or "baseline")
        lookup("baseline", on, baselines())
        reference, own_task = reference_of(canonical(stack)) if stack != "baseline" else ("baseline", "pretrain")
        pair = Pair(
            on,
            chosen("recipe", recipe, RECIPES),
            chosen("task", task, TASKS) if task else own_task,
            canonical(against) if against else reference,
            canonical(stack),
        )
        setting = Setting(chosen("size", size, SIZES), steps, data, model, device, threads)
        with tracking(wandb) as sent, bar(quiet=as_json) as progress:
            measure(
                [pair], setting, folder, seeds=seeds, minutes=minutes, limit_s=time_limit, hang_s=hang_limit,
                sequential=sequential, rounds=rounds, progress=progress, warn=warn, stored=sent,
            )  # fmt: skip
        results = importlib.import_module("suite.results")
        records, _ = Store(folder).read()
        row = results.row_of(records, pair, setting)
        if plot:
            importlib.import_module("suite.leaderboard.plots").draw(row, plot)
    if as_json:
        print(json.dumps(results.as_dict(row), indent=1))
    else:
        out.print(escape(importlib.import_module("suite.leaderboard.terminal").summary(row)))
    if row.failed:
        raise typer.Exit(int(Exit.RUN_FAILED))


@app.command()
def stack(
    techniques: Annotated[str, typer.Argument(metavar="A+B[+C]", help="The stack, e.g. lion+lawa or lion+lawa:k=4.")],
    against: Annotated[
        str | None, typer.Argument(help="What to compare all with. [the reference that their cards name]")
    ] = None,
    on: Annotated[str, typer.Option("-b", "--baseline", help="bert, gpt, vit or mae.")] = "gpt",
    size: SizeOption = "nano",
    recipe: Annotated[str, typer.Option("--recipe", help="classic, modern or compiled.")] = "modern",
    task: TaskOption = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Replicates.")] = 3,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Stop in time for this budget.")] = 10.0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=2, help="Paired rounds of a replicate.")] = None,
    steps: Steps = None,
    data: DataOption = None,
    model: ModelOption = None,
    device: Device = "cpu",
    threads: Threads = THREADS,
    folder: Out = RESULTS,
    time_limit: Limit = 3600.0,
    hang_limit: Hang = 600.0,
    sequential: Sequential = False,
    as_json: Json = False,
) -> None:
    """Do techniques still help together? Measure a stack and its parts in one comparison; print their interaction.

    The interaction is the stack's speedup over the product of its parts' speedups, with its interval over seeds.
    """
    with understandable(as_json):
        usable_device(device, as_json)
        from suite.baseline import RECIPES, SIZES, TASKS, baselines
        from suite.campaign import measure
        from suite.catalogue import lookup
        from suite.plan import Setting
        from suite.records import Store

        interaction = importlib.import_module("suite.interaction")
        lookup("baseline", on, baselines())
        pairs = interaction.pairs_of_stack(
            techniques, on, chosen("recipe", recipe, RECIPES), task=chosen("task", task, TASKS) if task else None,
            against=against,
        )  # fmt: skip
        setting = Setting(chosen("size", size, SIZES), steps, data, model, device, threads)
        with bar(quiet=as_json) as progress:
            measure(
                pairs, setting, folder, seeds=seeds, minutes=minutes, limit_s=time_limit, hang_s=hang_limit,
                sequential=sequential, rounds=rounds, one_comparison=True, progress=progress, warn=warn,
            )  # fmt: skip
        found = interaction.measured(pairs, setting, Store(folder).read()[0])
    if as_json:
        results = importlib.import_module("suite.results")
        print(json.dumps(interaction.as_dict(found) | {"rows": [results.as_dict(row) for row in found.rows]}, indent=1))
    else:
        shown = importlib.import_module("suite.leaderboard.stacks")
        head, lines = shown.table(found)
        grid = Table(*map(escape, head), box=None, pad_edge=False)
        for line in lines:
            grid.add_row(*map(escape, line))
        out.print(escape(shown.title(found)))
        out.print(grid)
        for sentence in (*shown.notes(found), shown.READING):
            out.print(escape(sentence))
    if found.failed:
        raise typer.Exit(int(Exit.RUN_FAILED))


@app.command()
def repro(
    record: Annotated[str, typer.Argument(help="A record's id, or its beginning. `claims ID` prints ids.")],
    folder: Out = RESULTS,
    data: Annotated[str | None, typer.Option("--data", help="Where the record's data is. [embedded data]")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Store the repetition: of two records of a seed the board shows the newer.")
    ] = False,
    time_limit: Limit = 3600.0,
    hang_limit: Hang = 600.0,
    as_json: Json = False,
) -> None:
    """Run a record's comparison again, seed and all, and say whether the two agree. Stores nothing unless told to.

    Exact counters must be equal, losses equal to the bit, cost ratios as near as noise allows: by this machine's
    calibration, or else by the spread over the record's seeds. Exit code 1 if the two disagree, 3 if that cannot be
    decided: the code or the machine is another, or the noise is unknown or too large.
    """
    with understandable(as_json):
        from suite.machine import fingerprint
        from suite.records import Store

        repeat = importlib.import_module("suite.repro")
        records, _ = Store(folder).read()
        old = repeat.find(records, record)
        usable_device(old.conditions.device, as_json)
        machine = fingerprint(old.conditions.device, old.conditions.threads)
        current = importlib.import_module("suite.results").current_sources()
        new, findings, word = None, [], "not comparable"
        why = repeat.obstacles(old, current, machine)
        if not why:
            comparison = repeat.comparison_of(old, data)
            with bar(quiet=as_json) as progress:
                new = repeat.again(
                    old, comparison, keep=folder if keep else None, limit_s=time_limit, hang_s=hang_limit,
                    progress=progress,
                )  # fmt: skip
            findings = repeat.judged(old, new, repeat.noise_of(old, records, machine))
            word = repeat.overall(findings)
    if as_json:
        told = {"record": old.id, "verdict": word, "why": why, "findings": [asdict(each) for each in findings]}
        print(json.dumps(told | {"repetition": json.loads(new.model_dump_json()) if new else None}, indent=1))
    else:
        grid = Table("", "", "", box=None, pad_edge=False, show_header=False)
        for each in findings:
            grid.add_row(escape(each.stack), each.what, each.word, escape(each.why))
        if findings:
            out.print(grid)
        has = old.conditions
        conditions = f"{has.baseline} {has.size} ({has.recipe}, {has.task}), seed {old.seed}"
        out.print(escape(f"{old.id} on {conditions}: {'; '.join([word, *why])}"))
    if word != "agrees":
        raise typer.Exit(int(Exit.REGRESSED if word == "disagrees" else Exit.INCONCLUSIVE))


@app.command()
def study(
    id: Annotated[str, typer.Argument(help="A technique that has a study.")],
    on: Annotated[str, typer.Option("-b", "--baseline", help="bert, gpt, vit or mae.")] = "gpt",
    size: SizeOption = "nano",
    recipe: Annotated[str, typer.Option("--recipe", help="classic, modern or compiled.")] = "modern",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each run.")] = 3,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Stop in time for this budget.")] = 10.0,
    device: Device = "cpu",
    threads: Threads = THREADS,
    folder: Out = RESULTS,
    write: Annotated[Path | None, typer.Option("--write", help="A folder for the tables (CSV) and the plot.")] = None,
    as_json: Json = False,
) -> None:
    """Answer a technique's question over many runs: print its tables, write them and its plot."""
    with understandable(as_json):
        usable_device(device, as_json)
        from suite.baseline import RECIPES, SIZES, baselines
        from suite.catalogue import catalogue, lookup
        from suite.plan import Setting
        from suite.run import replacing
        from suite.study import Lab, study_of

        lookup("baseline", on, baselines())
        module = study_of(lookup("technique", id, catalogue()))
        setting = Setting(chosen("size", size, SIZES), device=device, threads=threads)
        with bar(quiet=as_json) as progress:
            lab = Lab(on, chosen("recipe", recipe, RECIPES), setting, folder, seeds, minutes, progress, warn)
            tables = module.study(lab)
        if write:
            for table in tables:
                with replacing(write / f"{table.name}.csv") as partial:
                    partial.write_text(table.as_csv(), "utf-8")
            if hasattr(module, "plot"):
                with replacing(write / f"{id}.svg") as partial:
                    module.plot(tables).savefig(partial, format="svg")
    if as_json:
        print(json.dumps({table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in tables}))
        return
    for table in tables:
        grid = Table(
            *table.columns, title=f"{table.name}. {table.note}", title_justify="left", box=None, pad_edge=False
        )
        for row in table.rows:
            grid.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
        out.print(grid)


@app.command()
def leaderboard(
    folder: Out = RESULTS,
    write: Annotated[Path, typer.Option("--write", help="The Markdown file to write.")] = Path("leaderboard.md"),
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Write the leaderboard from the records of the results folder."""
    from suite.run import replacing

    with understandable(as_json):
        from suite.catalogue import catalogue
        from suite.records import Store

        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        if not records:
            fail(f"{folder} holds no records; measure some with: leantrain run --out {folder}", Exit.NOTHING, as_json)
        results = importlib.import_module("suite.results")
        calibrations, unreadable = importlib.import_module("suite.calibration").beside(folder)
        for problem in unreadable:
            warn(problem)
        rows = results.rows(records)
        judged = importlib.import_module("suite.claims").verdicts(rows)
        for form, target in (("markdown", write), ("html", html)):
            if target:
                pages = importlib.import_module(f"suite.leaderboard.{form}")
                cards = {"cards": {id: entry.card for id, entry in catalogue().items()}} if form == "html" else {}
                with replacing(target) as partial:
                    partial.write_text(pages.render(rows, problems, judged, calibrations, **cards), "utf-8")
    if as_json:
        print(json.dumps([results.as_dict(row) for row in rows], indent=1))
    else:
        told = f"{many(len(rows), 'row')} from {many(len(records), 'replicate')}"
        out.print(f"{told}: {write}{f' and {html}' if html else ''}")


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
        exports = importlib.import_module("suite.export")
        chosen("format", form, exports.FORMATS), chosen("table", table, exports.TABLES)
        if form == "parquet" and write is None:
            raise ValueError("Parquet is for a file: name one with --write")
        from suite.baseline import baselines
        from suite.catalogue import build, lookup
        from suite.comparison import canonical
        from suite.records import Store
        from suite.run import replacing

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
            for row in importlib.import_module("suite.results").rows(records)
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
        from suite.baseline import SIZES, baselines
        from suite.catalogue import lookup
        from suite.records import Store

        engine = importlib.import_module("suite.claims")
        cards = engine.chosen(id)
        for name in on or ():
            lookup("baseline", name, baselines())
        if size is not None and not exact:
            raise ValueError("--size says where exact claims are counted: add --exact, or leave it out")
        if exact:
            at = chosen("size", size or "nano", SIZES)
            found = importlib.import_module("suite.exact").exact_verdicts(cards, tuple(on or baselines()), at)
        else:
            records, problems = Store(folder).read()
            for problem in problems:
                warn(problem)
            found = engine.verdicts(importlib.import_module("suite.results").rows(records), cards)
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
def count(
    techniques: Annotated[
        list[str],
        typer.Option("-t", "--technique", help="An id or a stack like lion+lora:rank=4, or baseline; repeatable."),
    ],
    on: Annotated[str, typer.Option("-b", "--baseline", help="bert, gpt, vit or mae.")] = "gpt",
    size: SizeOption = "base",
    recipe: Annotated[str, typer.Option("--recipe", help="classic or modern.")] = "modern",
    task: TaskOption = None,
    model: ModelOption = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Examples a step. [the baseline's]")] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=8, help="Tokens a sequence. [the baseline's]")
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=2, help="A whole run of so many steps comes before the counted one.")
    ] = 2,
    as_json: Json = False,
) -> None:
    """Count one step at the paper's own size, in seconds and without its memory: parameters, state, activations, FLOPs.

    Of a technique and its reference, exactly, on tensors that have shapes and no values. Exit code 4 if none of the
    techniques can be counted so; the reason says which value it asked for.
    """
    with understandable(as_json):
        from suite.baseline import RECIPES, SIZES, TASKS
        from suite.catalogue import build

        scales = importlib.import_module("suite.paper_scale")
        for stack in techniques:
            build(stack)
        scale = scales.Scale(
            on, chosen("size", size, SIZES), chosen("recipe", recipe, RECIPES), model=model, batch_size=batch,
            sequence_length=sequence_length, steps=steps,
        )  # fmt: skip
        with bar(quiet=as_json) as progress:
            found = scales.pairs(techniques, scale, chosen("task", task, TASKS) if task else None, progress)
    if as_json:
        print(json.dumps([each.as_dict() for each in found], indent=1))
    for pair in [] if as_json else found:
        out.print(escape(scales.title(pair)))
        sides = ("", pair.reference.stack, pair.stack.stack, "ratio") if pair.reference else ("", pair.stack.stack)
        grid = Table(*sides, box=None, pad_edge=False)
        for column in grid.columns[1:]:
            column.justify = "right"
        for line in scales.lines(pair):
            grid.add_row(*map(escape, line))
        if grid.rows:
            out.print(grid)
        for note in scales.notes(pair):
            out.print(escape(note))
        out.print()
    if all(each.stack.counters is None for each in found):
        raise typer.Exit(int(Exit.UNFIT))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new technique's id, e.g. my_idea.")],
    category: Annotated[str, typer.Option("--category", help="The folder above it.")] = "ideas",
    root: Annotated[Path, typer.Option("--root", help="A checkout of leantrain.")] = Path("."),
) -> None:
    """Write a working technique folder and its test, to be changed into yours."""
    with understandable():
        from suite.catalogue import catalogue
        from suite.scaffold import scaffold

        if name in catalogue():
            raise ValueError(f"there is a technique called {name} already; choose another name")
        if not (root / "techniques").is_dir():
            raise ValueError(
                f"{root.resolve()} is no checkout of leantrain (no techniques/ in it); name one with --root"
            )
        files = scaffold(name, category, root)
    for path in files:
        out.print(str(path))
    out.print(f"try it: leantrain compare {name} -b gpt, and pytest {files[3]}")


@app.command()
def check(
    against: Annotated[
        str | None, typer.Option("--against", help="A reference file, or a git revision to check out beside this one.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write a reference file of this tree.")] = None,
    techniques: Techniques = None,
    on: Baselines = None,
    size: SizeOption = "nano",
    recipe: Annotated[list[str] | None, typer.Option("--recipe", help="Repeatable. [modern]")] = None,
    device: Device = "cpu",
    threads: Threads = THREADS,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Changed losses and removed techniques are meant.")
    ] = False,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Time the tree against a git revision, too.")
    ] = True,
    margin: Margin = 0.03,
    budget: Budget = 60.0,
    summary: Annotated[Path | None, typer.Option("--summary", help="Append a Markdown summary to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Guard a repository: did exact costs, training or speed change against a stored reference or another revision?"""
    with understandable(as_json):
        usable_device(device, as_json)
        from suite import check as checks
        from suite import regression
        from suite.baseline import RECIPES, SIZES
        from suite.revision import top_of

        if (against is None) == (save is None):
            raise ValueError("name either --against REF or --save FILE")
        selection = checks.Selection(
            tuple(techniques or ()),
            tuple(on or ()),
            tuple(chosen("recipe", name, RECIPES) for name in recipe or ("modern",)),
        )
        setting = regression.Setting(size=chosen("size", size, SIZES), device=device, threads=threads)
        with bar(quiet=as_json) as progress:
            if save is not None:
                stored = checks.counted(selection, setting, progress)
                regression.save(stored, save)
                out.print(f"{len(stored.counts)} items saved to {save}")
                return
            assert against is not None
            if Path(against).is_file():
                findings = checks.against_file(Path(against), selection, setting, progress)
            else:
                clock = checks.Clock(margin, budget) if timing else None
                findings = checks.against_revision(against, top_of(Path()), selection, setting, clock, progress)
        if summary:
            with summary.open("a", encoding="utf-8") as file:
                file.write(regression.markdown(findings, against))
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=1))
    else:
        for each in findings:
            details = "; ".join([*map(str, each.changes), *([each.why] if each.why else [])])
            out.print(escape(f"{each.verdict:15}{each.item}{': ' if details else ''}{details}"))
    if code := regression.exit_code(findings, accept_changes):
        raise typer.Exit(code)


@app.command()
def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Few gates: minutes, and a wide interval.")] = False,
    gates: Annotated[int | None, typer.Option("--gates", min=1, help="Gates of unchanged code. [20, quick: 6]")] = None,
    planted: Annotated[
        int | None, typer.Option("--planted", min=1, help="Gates with a planted slow-down. [4, quick: 2]")
    ] = None,
    margin: Margin = 0.03,
    budget: Budget = 60.0,
    device: Device = "cpu",
    threads: Threads = THREADS,
    folder: Out = RESULTS,
    as_json: Json = False,
) -> None:
    """Measure this machine's false-alarm rate and whether its gate can fire: what check needs before it times anything.

    The result is valid for 7 days under the machine's fingerprint; a copy is kept with the machine's records, for the
    leaderboard. Exit code 4 if the machine must not gate.
    """
    with understandable(as_json):
        usable_device(device, as_json)
        from suite import calibration as calibrations
        from suite.machine import fingerprint, fitness
        from suite.regression import Setting

        for sentence in fitness(device):
            warn(sentence)
        machine = fingerprint(device, threads)
        with bar(quiet=as_json) as progress:
            made = calibrations.calibrate(
                Path(__file__).parents[1], machine, Setting(device=device, threads=threads),
                gates=gates or (calibrations.QUICK_GATES if quick else calibrations.GATES),
                planted=planted or (calibrations.QUICK_PLANTED if quick else calibrations.PLANTED),
                margin=margin, budget_s=budget, progress=progress,
            )  # fmt: skip
        path = calibrations.store(made)
        try:
            calibrations.store(made, calibrations.path_beside(folder, machine))
        except OSError as error:
            warn(f"no copy for the leaderboard in {folder}: {error.strerror}; name another folder with --out")
        why = calibrations.unfit(made, machine, margin=margin, budget_s=budget, now=made.made)
    if as_json:
        print(json.dumps({"path": str(path), "unfit": why, "report": calibrations.report(made)}, indent=1))
    else:
        for line in calibrations.report(made):
            out.print(escape(line))
        out.print(f"kept in {path}")
    if why:
        fail(why, Exit.UNFIT)


@app.command()
def kernels(
    ids: Annotated[list[str] | None, typer.Argument(help="Techniques that have a kernel. [all]")] = None,
    check: Annotated[bool, typer.Option("--check", help="Correctness and machine code only, no timing.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Examine the Triton kernels: right, within their machine-code budgets; on a GPU how near their floor, and peers.

    Without a GPU they are checked under Triton's interpreter, and compiled for Hopper all the same. Exit code 1 if one
    is wrong or over its budget.
    """
    with understandable(as_json):
        usable_device(device, as_json)
        report = importlib.import_module("suite.kernel_report")
        entries = report.selected(ids or ())
        timed = device == "cuda" and not check
        found = []
        with bar(quiet=as_json) as progress:
            for number, entry in enumerate(entries):
                progress(number / len(entries), entry.id)
                found += report.rows(entry, device, timed)
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        columns = report.CHECK_COLUMNS + (report.TIME_COLUMNS if timed else ())
        grid = Table(*columns, box=None, pad_edge=False)
        for row in found:
            grid.add_row(*map(escape, report.line(row, timed)))
        out.print(grid)
        for row in found:
            for violation in row.violations:
                out.print(escape(f"{row.technique}/{row.kernel}: {violation}"))
        if not timed and not check:
            out.print("time, per cent of floor, launch cost and peers: unavailable (they need --device cuda)")
    if not found:
        raise typer.Exit(int(Exit.NOTHING))
    if any(row.violations for row in found):
        raise typer.Exit(int(Exit.REGRESSED))


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
        from suite.records import Store

        times = importlib.import_module("suite.history")
        metrics = [chosen("metric", each, times.METRICS) for each in metric or times.METRICS]
        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        found = times.series(records, stacks or (), metrics)
        if not found:
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
def doctor(device: Device = "cpu", as_json: Json = False) -> None:
    """Say what this machine can measure, what is missing, and what would disturb a measurement now."""
    from suite.doctor import examine

    with understandable(as_json):
        chosen("device", device, ("cpu", "cuda"))
        report = examine(device, THREADS)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        for title, lines in report.items():
            out.print(f"[bold]{title}[/bold]")
            for line in lines:
                out.print(f"  {escape(line)}")
    if report["disturbs a measurement now"]:
        raise typer.Exit(int(Exit.UNFIT))


def main() -> None:
    """The console script."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Contenders need nothing of this script; multiprocessing would import it again, with all that it imports, in each.
    vars(sys.modules["__main__"]).pop("__file__", None)
    app()


if __name__ == "__main__":
    main()
