"""Has the commands that look: the catalogue, a card, the references, the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from inspect import getdoc, getmodule
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suite.cli.options import (
    RESULTS,
    THREADS,
    Baselines,
    Device,
    Json,
    KnownResults,
    OneRecipe,
    Results,
    SizeOption,
    TargetOptions,
    device_named,
    looking_up,
    minutes_option,
    named,
    setting_of,
    stacks_option,
)
from suite.cli.shared import CHOOSE, MORE, Exit, app, bar, escape, many, out, show_table, understandable, warn

if TYPE_CHECKING:
    from suite.entries.catalogue import Entry
    from suite.guard.rehearsal import Outcome
    from suite.judge.study_tables import Study
    from suite.measure.provenance import Progress
    from suite.record.job import Setting
    from suite.topics.references.learned_references import LearnedReference


def _categories_and_techniques(incomplete: str) -> list[str]:
    from suite.entries.catalogue import catalogue

    names = dict.fromkeys(name for id, entry in catalogue().items() for name in (entry.folder.parent.name, id))
    return [name for name in names if name.startswith(incomplete)]


@app.command("list", rich_help_panel=CHOOSE)
def list_(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[CATEGORY|ID|NAME|ARXIV]",
            help="Only this category; or all about one technique, by its id, its name or its paper.",
            autocompletion=_categories_and_techniques,
        ),
    ] = None,
    citations: Annotated[bool, typer.Option("--bibtex", help="Print the papers as BibTeX.")] = False,
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """List the techniques: what they change, on which baselines, against what; or show one's card.

    A card has the paper, the variant, the hyper-parameters and where they come from, the claims; below it is what the
    technique's studies found.
    """
    with understandable(as_json):
        from suite.entries.cards import known_as, with_cards
        from suite.entries.catalogue import catalogue

        sound, broken = with_cards(catalogue())
        if what in broken:
            raise ValueError(broken[what])
        entries = list(sound.values())
        if what is not None:
            with looking_up():
                broken, entries = {}, known_as(what, sound)
            if len(entries) == 1 and entries[0].card.category != what and not citations:
                return _show(entries[0], folder, as_json)
        if named(context, "folder"):
            raise ValueError("--results says where the studies of one technique are: name its id, or leave it out")
    if citations:
        from suite.show.bibtex import bibtex

        print("\n\n".join(bibtex(entry.card) for entry in entries))
        return None
    if as_json:
        cards = [entry.card.model_dump(mode="json", exclude={"claim"}) for entry in entries]
        print(json.dumps([*cards, *({"id": id, "broken": reason} for id, reason in broken.items())], indent=1))
        return None
    if out.is_terminal:
        _show_by_category(entries, broken)
    else:
        head = ("id", "category", "baselines", "task", "against", "what it changes")
        lines: list[tuple[str, ...]] = [
            (card.id, card.category, " ".join(card.baselines), card.task, card.reference, card.summary)
            for card in (entry.card for entry in entries)
        ]
        of = catalogue()
        lines += [(id, of[id].folder.parent.name, "", "", "", f"broken: {why}") for id, why in broken.items()]
        show_table(head, lines)
    if not entries:
        raise typer.Exit(int(Exit.NOTHING))
    return None


def _show_by_category(entries: Sequence[Entry], broken: Mapping[str, str]) -> None:
    """Prints a table for each category; task and reference only where they are not the usual ones."""
    longest = max((len(entry.id) for entry in entries), default=0)
    for category, group in groupby(sorted(entries, key=lambda entry: entry.card.category), lambda e: e.card.category):
        lines = []
        for card in (entry.card for entry in group):
            unusual = [card.task] * (card.task != "pretrain") + [f"against {card.reference}"] * (
                card.reference != "baseline"
            )
            remark = f" ({', '.join(unusual)})" if unusual else ""
            lines.append((card.id.ljust(longest), " ".join(card.baselines).ljust(16), card.summary + remark))
        show_table((category, "baselines", "what it changes"), lines)
        out.print()
    if broken:
        show_table(("broken", "why"), list(broken.items()))


def _show(entry: Entry, folder: Path, as_json: bool) -> None:
    from suite.entries import origins
    from suite.judge.study_tables import path_of
    from suite.loop.technique import CHAINED, SLOTS, overrides

    card, cls = entry.card, entry.technique
    settings = {field.name: None if field.default is MISSING else field.default for field in fields(cls) if field.init}
    changes = [method for method in (*SLOTS, *CHAINED) if overrides(cls, method)]
    if as_json:
        studies = [study.model_dump(mode="json") for study in _studies_of(card.id, folder)]
        extra = {"hyper_parameters": settings, "overrides": changes, "studies": studies}
        print(json.dumps(card.model_dump(mode="json") | extra, indent=1, default=str))
        return
    out.print(f"[bold]{escape(card.name)}[/bold]  ({card.category}/{card.id})\n{escape(card.summary)}\n")
    paper = card.paper
    out.print(escape(f"{paper.authors}: {paper.title}. {paper.venue}. {paper.arxiv and 'arXiv ' + paper.arxiv}"))
    out.print(f"baselines {' '.join(card.baselines)}; task {card.task}; compared with {card.reference}")
    out.print("overrides " + ", ".join(changes))
    out.print("hyper-parameters " + (", ".join(f"{key}={value}" for key, value in settings.items()) or "none"))
    if algorithm := getdoc(getmodule(cls)):
        out.print(f"\n[bold]Algorithm.[/bold] {escape(algorithm)}")
    for title, text in (
        ("Variant", card.variant),
        ("Limitations", card.limitations),
        ("Counter-evidence", card.counter_evidence),
    ):
        if text:
            out.print(f"\n[bold]{title}.[/bold] {escape(text.strip())}")
    if numbers := [*origins.rows(entry)]:
        out.print(f"\n[bold]{origins.TITLE}.[/bold]")
        show_table(origins.HEAD, numbers)
    for claim in card.claim:
        expected = "" if claim.expected is None else f" {claim.metric} {claim.relation} {claim.expected:g}"
        out.print(f"\n[bold]Claim {claim.id}[/bold] ({claim.kind}, {claim.scope}; {escape(claim.source)}){expected}")
        out.print(f"  {escape(claim.statement)}")
        if claim.setting:
            out.print(f"  there: {escape(claim.setting.sentence)}")
        if claim.note:
            out.print(f"  note: {escape(claim.note)}")
    if card.properties:
        hold = f"leantrain claims {card.id} --exact judges them"
        out.print(f"\nProperties of this implementation: {len(card.properties)}; {hold}")
    for study in _studies_of(card.id, folder):  # a number says in its row what kind it is
        at = f"{study.baseline} {study.size} ({study.recipe}), machine {study.machine.name}, {study.made:%Y-%m-%d}"
        out.print(f"\n[bold]Study[/bold] {escape(at)}")
        if (plot := path_of(study, folder).with_suffix(".svg")).is_file():
            out.print(f"plot: {escape(str(plot))}")
        for table in study.tables:
            out.print(f"\n{escape(table.name)}: {escape(table.note)}" if table.note else f"\n{escape(table.name)}")
            show_table(table.columns, table.as_text())


def _studies_of(technique: str, folder: Path) -> list[Study]:
    from suite.judge.study_tables import read_studies

    studies, problems = read_studies(folder)
    for problem in problems:
        warn(problem)
    return [study for study in studies if study.technique == technique]


@app.command(rich_help_panel=MORE)
def baselines(
    names: Baselines = None,
    size: SizeOption = "nano",
    recipes: OneRecipe = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds that each reference is trained with.")] = 1,
    power: Annotated[
        bool, typer.Option("--power", help="Instead say what each can tell apart: controls against the noise of seeds.")
    ] = False,
    techniques: Annotated[list[str] | None, stacks_option("For --power: a technique as a further control.")] = None,
    folder: Results = RESULTS,
    minutes: Annotated[float, minutes_option("For --power: begin nothing new after that.")] = 60,
    as_json: Json = False,
) -> None:
    """Train the references and hold them against classical methods on the same data: have they learned anything?

    The answer is kept in the results folder, from which the leaderboard takes it. Exit code 1 if a reference is worse
    than a classical method: ratios to such a reference mean little.
    """
    with understandable(as_json):
        from suite.entries.installed import baselines as installed

        settings = [setting_of(TargetOptions([name], size, recipes)) for name in names or installed()]
        with bar(quiet=as_json) as progress:
            if power:
                _power(settings, techniques or [], folder, minutes, progress, as_json)
                return
            references = _learned(settings, seeds, folder, progress)
    if as_json:
        print(
            json.dumps(
                [{**reference.model_dump(mode="json"), **_summary(reference)} for reference in references], indent=1
            )
        )
    else:
        for reference in references:
            _show_reference(reference)
    if not all(reference.passed for reference in references):
        raise typer.Exit(int(Exit.REGRESSED))


def _show_reference(reference: LearnedReference) -> None:
    """Prints what a reference has learned beside the classical methods, and samples of it."""
    metrics = list(reference.scores or reference.bars[0].scores)
    cells = [f"{reference.scores[metric]:.4g}" for metric in metrics] if reference.scores else ["-"] * len(metrics)
    lines = [("the reference", *cells, reference.why)]
    for classical in reference.bars:
        cells = [f"{classical.scores[metric]:.4g}" for metric in metrics]
        lines.append((classical.method, *cells, "passed" if classical.passed else "not passed"))
    at, trained = reference.conditions, many(len(reference.seeds), "seed")
    out.print(
        f"{at.baseline} {at.size} ({at.recipe}, {trained}), judged by {reference.judged_by}; loss: {reference.quality}"
    )
    show_table(("", *metrics, ""), lines)
    for name, value in reference.further.items():
        out.print(escape(f"{name}: {value:.4g}"))
    for caption, samples in groupby(reference.samples, lambda sample: sample.caption):
        if texts := [sample.text for sample in samples if sample.text]:
            out.print(escape(f"{caption}:"))
            for text in texts:
                out.print(escape(f"  {text}"))
    if not reference.bars:
        out.print("no classical method here: at this size they would take longer than they tell")
    out.print()


def _learned(settings: Sequence[Setting], seeds: int, folder: Path, progress: Progress) -> list[LearnedReference]:
    """Trains the references, and keeps each in the results folder as soon as it is known."""
    from suite.topics.references import learned_references as record
    from suite.topics.references.measured_references import learned_references

    def keep(reference: LearnedReference) -> None:
        record.write(record.read(folder).with_newer([reference]), folder)

    record.read(folder)  # complains of a damaged file before anything is trained
    return learned_references(settings, seeds, progress, keep)


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
    from suite.measure.provenance import part
    from suite.topics.references import learned_references as record
    from suite.topics.references.power import power

    studied = []
    for number, setting in enumerate(settings):
        share, own = minutes / len(settings), part(progress, number, len(settings))
        studied.append(power(setting, folder, others, minutes=share, progress=own, warn=warn).evidence())
        record.write(record.read(folder).with_newer(power=studied), folder)
    if as_json:
        print(json.dumps([evidence.model_dump(mode="json") for evidence in studied], indent=1))
        return
    for evidence in studied:
        lines = []
        for control in evidence.controls:
            budget = f"{control.equivalent_budget:.3f} [{control.low:.3f}, {control.high:.3f}]"
            lines.append((control.name, str(control.seeds), f"{control.loss_ratio:.4f}", budget))
        out.print(
            f"{evidence.conditions}: three seeds see a change of the equivalent budget of "
            f"{evidence.smallest_change:.1%}"
        )
        show_table(("control", "seeds", "loss", "equivalent budget"), lines)
        out.print()


@app.command(rich_help_panel=MORE)
def doctor(
    device: Device = "cpu",
    rehearse: Annotated[
        bool | None,
        typer.Option("--rehearse/--no-rehearse", help="Try what a measurement needs. [on a GPU]"),
    ] = None,
    minutes: Annotated[float, minutes_option("Of a rehearsal: begin nothing new after.")] = 2,
    techniques: Annotated[list[str] | None, stacks_option("Of a rehearsal: only this one; repeatable. [all]")] = None,
    file: Annotated[
        Path | None, typer.Option("--write", help="Of a rehearsal: the file of its findings, in which it goes on.")
    ] = None,
    results: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Say what this machine can measure, what is missing, and what would disturb a measurement now.

    And which machine of the results it is, if any: timings of that one count here, those of others never do.
    A rehearsal tries each technique's first steps and each kernel, the noise of timings and the energy counter, and
    ends with what works, what does not and why, and what to do next. Exit code 5 if something does not work.
    """
    with understandable(as_json):
        from suite.entries.catalogue import catalogue, lookup
        from suite.measure.doctor import examine

        for id in techniques or ():
            lookup("technique", id, catalogue())
        report = examine(device_named(device), THREADS, results)
        unfit = bool(report["disturbs a measurement now"])
        outcomes: list[Outcome] = []
        if rehearse or (rehearse is None and device == "cuda"):
            from suite.guard import rehearsal

            with bar(quiet=as_json) as progress:
                outcomes, late = rehearsal.rehearse(device, THREADS, minutes, file, techniques or (), progress=progress)
            report |= rehearsal.report(outcomes, late, device, THREADS)
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        for title, lines in report.items():
            out.print(f"[bold]{title}[/bold]")
            for line in lines:
                out.print(f"  {escape(line)}")
    if any(
        outcome.part in ("step", "kernel") and not outcome.works and outcome.status != "unavailable"
        for outcome in outcomes
    ):
        raise typer.Exit(int(Exit.RUN_FAILED))
    if unfit:
        raise typer.Exit(int(Exit.UNFIT))
