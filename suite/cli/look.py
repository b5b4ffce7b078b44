"""Commands that look: the catalogue, a card, what a step costs, kernels, the machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from suite.cli.options import (
    RESULTS,
    THREADS,
    Baselines,
    Device,
    Json,
    ModelOption,
    OneBaseline,
    OneRecipe,
    Results,
    SizeOption,
    TargetOptions,
    TaskOption,
    TrainingOptions,
    setting_of,
    task_of,
)
from suite.cli.shared import Exit, app, bar, escape, many, out, understandable, warn

if TYPE_CHECKING:
    from suite.contract.catalogue import Entry
    from suite.measure.evidence import Progress
    from suite.record.job import Setting
    from suite.record.references import LearnedReference


def _categories_and_techniques(incomplete: str) -> list[str]:
    from suite.contract.catalogue import catalogue

    names = dict.fromkeys(name for id, entry in catalogue().items() for name in (entry.folder.parent.name, id))
    return [name for name in names if name.startswith(incomplete)]


@app.command("list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[CATEGORY|ID]",
            help="Only this category; or all about one technique.",
            autocompletion=_categories_and_techniques,
        ),
    ] = None,
    citations: Annotated[bool, typer.Option("--bibtex", help="Print the papers as BibTeX.")] = False,
    as_json: Json = False,
) -> None:
    """List the techniques: what they change, on which baselines, against what; or show one's card.

    A card has the paper, the variant, the hyper-parameters, the claims.
    """
    with understandable(as_json):
        from suite.contract.cards import with_cards
        from suite.contract.catalogue import catalogue, lookup

        sound, broken = with_cards(catalogue())
        if what in broken:
            raise ValueError(broken[what])
        entries = list(sound.values())
        if what is not None:
            broken = {}
            categories = {entry.card.category: [entry] for entry in entries}
            lookup("category or technique", what, categories | {entry.id: [entry] for entry in entries})
            if what in catalogue() and not citations:
                return _show(catalogue()[what], as_json)
            entries = [entry for entry in entries if what in (entry.id, entry.card.category)]
    if citations:
        from suite.show.bibtex import bibtex

        print("\n\n".join(bibtex(entry.card) for entry in entries))
        return None
    if as_json:
        cards = [entry.card.model_dump(mode="json", exclude={"claim"}) for entry in entries]
        print(json.dumps([*cards, *({"id": id, "broken": reason} for id, reason in broken.items())], indent=1))
        return None
    table = Table("id", "category", "baselines", "task", "against", "what it changes", box=None, pad_edge=False)
    for column in table.columns[:2]:
        column.no_wrap = True
    for entry in entries:
        card = entry.card
        table.add_row(card.id, card.category, " ".join(card.baselines), card.task, card.reference, escape(card.summary))
    for id, reason in broken.items():
        table.add_row(id, catalogue()[id].folder.parent.name, "", "", "", escape(f"broken: {reason}"))
    out.print(table)
    if not entries:
        raise typer.Exit(int(Exit.NOTHING))
    return None


def _show(entry: Entry, as_json: bool) -> None:
    from suite.contract.technique import CHAINED, SLOTS, overrides

    card, cls = entry.card, entry.technique
    settings = {each.name: None if each.default is MISSING else each.default for each in fields(cls) if each.init}
    changes = [method for method in (*SLOTS, *CHAINED) if overrides(cls, method)]
    if as_json:
        extra = {"hyper_parameters": settings, "overrides": changes}
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
def count(
    stacks: Annotated[
        list[str],
        typer.Option(
            "-t", "--technique", help="A technique or a stack like lion+lora:rank=4, or baseline; repeatable."
        ),
    ],
    baselines: OneBaseline = None,
    size: SizeOption = "base",
    recipes: OneRecipe = None,
    task: TaskOption = None,
    model: ModelOption = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Examples a step. [the baseline's]")] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=8, help="Tokens a sequence. [the baseline's]")
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=2, help="A whole run of so many steps comes before the counted one.")
    ] = 2,
    device: Annotated[
        str, typer.Option("--device", help="Whose operators: cuda, a GPU's (none is needed), or cpu.")
    ] = "cuda",
    as_json: Json = False,
) -> None:
    """Count one step at the paper's own size, in seconds and without its memory: parameters, state, activations, FLOPs.

    Of a technique and its reference, exactly, on tensors that have shapes and no values, by the operators that a GPU
    would run. Exit code 4 if none of the techniques can be counted so; the reason says which value it asked for.
    """
    with understandable(as_json):
        from suite.contract.setting import DEVICES, chosen
        from suite.contract.stack import build
        from suite.measure import paper_scale
        from suite.show.counts import lines, notes, title

        for stack in stacks:
            build(stack)
        training = TrainingOptions(task=task, steps=steps, model=model)
        scale = paper_scale.Scale(
            setting_of(TargetOptions(baselines, size, recipes), training).but(device=chosen("device", device, DEVICES)),
            batch_size=batch,
            sequence_length=sequence_length,
        )
        with bar(quiet=as_json) as progress:
            counts = paper_scale.side_by_side(stacks, scale, task_of(training), progress)
    if as_json:
        print(json.dumps([each.as_dict() for each in counts], indent=1))
    for each in [] if as_json else counts:
        out.print(escape(title(each)))
        columns = ("", each.reference.stack, each.stack.stack, "ratio") if each.reference else ("", each.stack.stack)
        grid = Table(*columns, box=None, pad_edge=False)
        for column in grid.columns[1:]:
            column.justify = "right"
        for line in lines(each):
            grid.add_row(*map(escape, line))
        if grid.rows:
            out.print(grid)
        for note in notes(each):
            out.print(escape(note))
        out.print()
    if all(each.stack.counters is None for each in counts):
        raise typer.Exit(int(Exit.UNFIT))


@app.command()
def baselines(
    names: Baselines = None,
    size: SizeOption = "nano",
    recipes: OneRecipe = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds that each reference is trained with.")] = 1,
    power: Annotated[
        bool, typer.Option("--power", help="Instead say what each can tell apart: controls against the noise of seeds.")
    ] = False,
    techniques: Annotated[
        list[str] | None, typer.Option("--technique", "-t", help="For --power: a technique as a further control.")
    ] = None,
    folder: Results = RESULTS,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="For --power: begin nothing new after that.")
    ] = 60,
    as_json: Json = False,
) -> None:
    """Train the references and hold them against classical methods on the same data: have they learned anything?

    The answer is kept in the results folder, from which the leaderboard takes it. Exit code 1 if a reference is worse
    than a classical method: ratios to such a reference mean little.
    """
    with understandable(as_json):
        from suite.contract.baseline import baselines as installed
        from suite.measure.exact import one_thread

        settings = [setting_of(TargetOptions([name], size, recipes)) for name in names or installed()]
        with bar(quiet=as_json) as progress, one_thread():
            if power:
                _power(settings, techniques or [], folder, minutes, progress, as_json)
                return
            references = _learned(settings, seeds, folder, progress)
    if as_json:
        print(json.dumps([{**each.model_dump(mode="json"), **_summary(each)} for each in references], indent=1))
    for each in [] if as_json else references:
        metrics = list(each.scores or each.bars[0].scores)
        grid = Table("", *metrics, "", box=None, pad_edge=False)
        cells = [f"{each.scores[metric]:.4g}" for metric in metrics] if each.scores else ["-"] * len(metrics)
        grid.add_row("the reference", *cells, escape(each.why))
        for classical in each.bars:
            cells = [f"{classical.scores[metric]:.4g}" for metric in metrics]
            grid.add_row(classical.method, *cells, "passed" if classical.passed else "not passed")
        at, trained = each.conditions, many(len(each.seeds), "seed")
        out.print(f"{at.baseline} {at.size} ({at.recipe}, {trained}), judged by {each.judged_by}; loss: {each.quality}")
        out.print(grid)
        for name, value in each.further.items():
            out.print(escape(f"{name}: {value:.4g}"))
        for caption, samples in groupby(each.samples, lambda sample: sample.caption):
            if texts := [sample.text for sample in samples if sample.text]:
                out.print(escape(f"{caption}:"))
                for text in texts:
                    out.print(escape(f"  {text}"))
        if not each.bars:
            out.print("no classical method here: at this size they would take longer than they tell")
        out.print()
    if not all(each.passed for each in references):
        raise typer.Exit(int(Exit.REGRESSED))


def _learned(settings: Sequence[Setting], seeds: int, folder: Path, progress: Progress) -> list[LearnedReference]:
    """Trains the references, and keeps each in the results folder as soon as it is known."""
    from suite.measure.references import learned_references
    from suite.record import references as record

    record.read(folder)  # complains of a damaged file before anything is trained
    return learned_references(
        settings, seeds, progress, lambda reference: record.write(record.read(folder).with_newer([reference]), folder)
    )


def _summary(reference: LearnedReference) -> dict[str, Any]:
    return {"scores": reference.scores, "passed": reference.passed}


def _power(
    settings: Sequence[Setting],
    others: list[str],
    folder: Path,
    minutes: float,
    progress: Progress,
    as_json: bool,
) -> None:
    """Prints what each baseline tells apart, and keeps it."""
    from suite.measure.power import power
    from suite.record import references as record

    studied = []
    for setting in settings:
        share = minutes / len(settings)
        studied.append(power(setting, folder, others, minutes=share, progress=progress, warn=warn).evidence())
        record.write(record.read(folder).with_newer(power=studied), folder)
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in studied], indent=1))
        return
    for each in studied:
        grid = Table("control", "seeds", "loss", "equivalent budget", box=None, pad_edge=False)
        for control in each.controls:
            budget = f"{control.equivalent_budget:.3f} [{control.low:.3f}, {control.high:.3f}]"
            grid.add_row(escape(control.name), str(control.seeds), f"{control.loss_ratio:.4f}", escape(budget))
        out.print(f"{each.conditions}: three seeds see a change of the equivalent budget of {each.smallest_change:.1%}")
        out.print(grid)
        out.print()


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
        from suite.contract.setting import check_device
        from suite.guard import kernel_report as report

        check_device(device)
        entries = report.selected(ids or ())
        timed = device == "cuda" and not check
        rows = []
        with bar(quiet=as_json) as progress:
            for number, entry in enumerate(entries):
                progress(number / len(entries), entry.id)
                rows += report.rows(entry, device, timed)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        columns = report.CHECK_COLUMNS + (report.TIME_COLUMNS if timed else ())
        grid = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            grid.add_row(*map(escape, report.line(row, timed)))
        out.print(grid)
        for row in rows:
            for violation in row.violations:
                out.print(escape(f"{row.technique}/{row.kernel}: {violation}"))
        if not timed and not check:
            out.print("time, per cent of floor, launch cost and peers: unavailable (they need --device cuda)")
    if not rows:
        raise typer.Exit(int(Exit.NOTHING))
    if any(row.violations for row in rows):
        raise typer.Exit(int(Exit.REGRESSED))


@app.command()
def doctor(device: Device = "cpu", as_json: Json = False) -> None:
    """Say what this machine can measure, what is missing, and what would disturb a measurement now."""
    with understandable(as_json):
        from suite.contract.setting import DEVICES, chosen
        from suite.measure.doctor import examine

        chosen("device", device, DEVICES)
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
