"""Commands that train: fill the results folder, compare, stack, study, repeat; and start a new technique."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from suite.cli.shared import (
    RESULTS,
    THREADS,
    Baselines,
    DataOption,
    Device,
    Exit,
    Hang,
    Json,
    Limit,
    ModelOption,
    Out,
    Sequential,
    SizeOption,
    Steps,
    TaskOption,
    Techniques,
    Threads,
    Wandb,
    app,
    bar,
    chosen,
    err,
    escape,
    fail,
    many,
    out,
    understandable,
    usable_device,
    usable_model,
    warn,
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new technique's id, e.g. my_idea.")],
    category: Annotated[str, typer.Option("--category", help="The folder above it.")] = "ideas",
    root: Annotated[Path, typer.Option("--root", help="A checkout of leantrain.")] = Path("."),
) -> None:
    """Write a working technique folder and its test, to be changed into yours."""
    with understandable():
        from suite.contract.catalogue import catalogue
        from suite.contract.scaffold import scaffold

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
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import catalogue, lookup
        from suite.contract.stack import build
        from suite.measure.campaign import measure
        from suite.measure.plan import pairs_of
        from suite.record.job import RECIPES, SIZES, TASKS, Setting

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
        usable_model(model, on or (), setting.size, data)
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
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import lookup
        from suite.contract.stack import build
        from suite.measure.campaign import measure
        from suite.measure.plan import Pair, reference_of
        from suite.record.job import RECIPES, SIZES, TASKS, Setting, canonical
        from suite.record.store import Store

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
        usable_model(model, [on], setting.size, data)
        with tracking(wandb) as sent, bar(quiet=as_json) as progress:
            measure(
                [pair], setting, folder, seeds=seeds, minutes=minutes, limit_s=time_limit, hang_s=hang_limit,
                sequential=sequential, rounds=rounds, progress=progress, warn=warn, stored=sent,
            )  # fmt: skip
        results = importlib.import_module("suite.judge.rows")
        records, _ = Store(folder).read()
        row = results.row_of(records, pair, setting)
        if plot:
            importlib.import_module("suite.show.plots").draw(row, plot)
    if as_json:
        print(json.dumps(results.as_dict(row), indent=1))
    else:
        out.print(escape(importlib.import_module("suite.show.terminal").summary(row)))
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
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import lookup
        from suite.measure.campaign import measure
        from suite.record.job import RECIPES, SIZES, TASKS, Setting
        from suite.record.store import Store

        interaction = importlib.import_module("suite.judge.interaction")
        lookup("baseline", on, baselines())
        pairs = interaction.pairs_of_stack(
            techniques, on, chosen("recipe", recipe, RECIPES), task=chosen("task", task, TASKS) if task else None,
            against=against,
        )  # fmt: skip
        setting = Setting(chosen("size", size, SIZES), steps, data, model, device, threads)
        usable_model(model, [on], setting.size, data)
        with bar(quiet=as_json) as progress:
            measure(
                pairs, setting, folder, seeds=seeds, minutes=minutes, limit_s=time_limit, hang_s=hang_limit,
                sequential=sequential, rounds=rounds, one_comparison=True, progress=progress, warn=warn,
            )  # fmt: skip
        found = interaction.measured(pairs, setting, Store(folder).read()[0])
    if as_json:
        results = importlib.import_module("suite.judge.rows")
        print(json.dumps(interaction.as_dict(found) | {"rows": [results.as_dict(row) for row in found.rows]}, indent=1))
    else:
        shown = importlib.import_module("suite.show.stacks")
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
def study(
    id: Annotated[str, typer.Argument(help="A technique that has a study.")],
    on: Annotated[
        str | None,
        typer.Option("-b", "--baseline", help="bert, gpt, vit or mae. [gpt, else the first that the study is for]"),
    ] = None,
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
    """Answer a technique's question over many runs: print its tables, write them and its plot.

    What it found is kept beside the machine's records, and shown by `leantrain leaderboard`.
    """
    with understandable(as_json):
        usable_device(device, as_json)
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import catalogue, lookup
        from suite.measure.lab import Lab
        from suite.measure.study import baseline_for, stored_form, study_of, write_study
        from suite.record.files import replacing
        from suite.record.job import RECIPES, SIZES, Setting

        if on:
            lookup("baseline", on, baselines())
        entry = lookup("technique", id, catalogue())
        question = study_of(entry)
        setting = Setting(
            baseline=baseline_for(entry, question, on),
            size=chosen("size", size, SIZES),
            recipe=chosen("recipe", recipe, RECIPES),
            device=device,
            threads=threads,
        )
        with bar(quiet=as_json) as progress:
            lab = Lab(setting, folder, seeds, minutes, progress, warn)
            answer = stored_form(lab, entry, question.study(lab))
        tables, kept = answer.tables, write_study(answer, folder)
        if write:
            for table in tables:
                with replacing(write / f"{table.name}.csv") as partial:
                    partial.write_text(table.as_csv(), "utf-8")
            if hasattr(question, "plot"):
                with replacing(write / f"{id}.svg") as partial:
                    question.plot(tables).savefig(partial, format="svg")
    err.print(f"kept: {escape(str(kept))}" if kept else "not kept: every table is empty")
    if as_json:
        print(json.dumps({table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in tables}))
        return
    for table in tables:
        grid = Table(
            *table.columns, title=f"{table.name}. {table.note}", title_justify="left", box=None, pad_edge=False
        )
        for row in table.as_text():
            grid.add_row(*row)
        out.print(grid)


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
        from suite.record.machine import fingerprint
        from suite.record.store import Store

        repeat = importlib.import_module("suite.guard.agreement")
        records, _ = Store(folder).read()
        old = repeat.find(records, record)
        usable_device(old.conditions.device, as_json)
        machine = fingerprint(old.conditions.device, old.conditions.threads)
        current = importlib.import_module("suite.judge.rows").current_sources()
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


@contextmanager
def tracking(wanted: bool) -> Iterator[Any]:
    """What sends stored records to wandb, or None; says at the end, however it comes, where they are."""
    if not wanted:
        yield None
        return
    tracker = importlib.import_module("suite.show.tracking").Tracker(warn)
    try:
        yield tracker
    finally:
        err.print(escape(tracker.where))
