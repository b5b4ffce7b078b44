"""Has the commands that train: fill the results folder, compare, stack, study, repeat; and start a new technique."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suite.cli.options import (
    OF_STACKS,
    RESULTS,
    Baselines,
    EvidenceOptions,
    Hang,
    Json,
    KnownResults,
    LearningOptions,
    Limit,
    MachineOptions,
    Recipes,
    SinkOptions,
    Sizes,
    Stack,
    TargetOptions,
    Techniques,
    TrainingOptions,
    check_reached,
    refusing,
    setting_of,
    with_options,
)
from suite.cli.shared import (
    GUARD,
    MEASURE,
    MORE,
    Exit,
    app,
    bar,
    err,
    escape,
    fail,
    out,
    show_table,
    understandable,
    warn,
)
from suite.cli.sweep import SweepFile, blamed

if TYPE_CHECKING:
    from suite.judge.rows import Row
    from suite.judge.verdicts import ChangeVerdict
    from suite.measure.campaign import Effort, Measured
    from suite.measure.missing import Pair
    from suite.record.schema import Line
    from suite.record.store import Records


@app.command(rich_help_panel=GUARD)
def new(
    name: Annotated[str, typer.Argument(help="The new technique's id, e.g. my_idea.")],
    category: Annotated[str, typer.Option("--category", help="The folder above it.")] = "ideas",
    root: Annotated[
        Path, typer.Option("--root", help="A checkout of leantrain, or a folder for a package of your own.")
    ] = Path("."),
    wraps_optimizer: Annotated[
        bool, typer.Option("--wraps-optimizer", help="Let it be an optimizer around the stack's.")
    ] = False,
) -> None:
    """Write a working technique and its test, to be changed into yours.

    In a checkout of leantrain they become a folder of it; elsewhere a package of your own, which leantrain finds once
    it is installed (pip install -e).
    """
    with understandable():
        from suite.entries.catalogue import catalogue
        from suite.entries.scaffold import is_checkout, plugin, scaffold

        if name in catalogue():
            raise ValueError(f"there is a technique called {name} already; choose another name")
        categories = {entry.folder.parent.name for entry in catalogue().values()}
        if category not in categories and (near := difflib.get_close_matches(category, categories, n=1, cutoff=0.8)):
            raise ValueError(f"no category is called {category!r}; did you mean {near[0]}?")
        if not root.is_dir():
            raise ValueError(f"{root} is no folder; name one with --root, or make it")
        own = not is_checkout(root)
        files = (plugin if own else scaffold)(name, category, root, wraps_optimizer)
    for path in files:
        out.print(escape(str(path)))
    first = f"install it: pip install -e {root / name}; " if own else ""
    tries = f"leantrain compare {name} -b gpt, pytest {files[0]}, and leantrain claims {name} --mutants"
    last = "" if own else f"; when it is right: python -m tests.golden {name} --renew"
    out.print(escape(f"{first}try it: {tries}{last}"))


@app.command(rich_help_panel=MEASURE)
@with_options
def run(
    context: typer.Context,
    sweep: SweepFile = None,
    techniques: Techniques = None,
    on: Baselines = None,
    sizes: Sizes = None,
    recipe: Recipes = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=2,
            help="Processes that train one model together, of techniques that distribute it, and of their references. "
            "[the technique's]",
        ),
    ] = None,
    *,
    training: TrainingOptions,
    machine: MachineOptions,
    learning: LearningOptions,
    evidence: EvidenceOptions,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time techniques beside other packages' implementations of them, and nothing else.",
        ),
    ] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Measure nothing new: count anew what other code counted, and repeat a tenth of a run of what it "
            "learned, which renews all of it where it is equal to the bit. Nothing is timed.",
        ),
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured, how long it takes and how much disk.")
    ] = False,
    sinks: SinkOptions,
    as_json: Json = False,
) -> None:
    """Measure what is not known yet: every technique against its reference.

    It counts and times each once, then learns, then times again for an interval. Evidence is appended to the results
    folder as it comes, and an interrupted run continues where it stopped. The most informative comes first: each
    technique once before any on a second baseline, and that before anything twice. Curves that another machine learned
    are used; times are always this machine's. What a technique's claims compare it with, a control or a variant, is
    learned after it. Exit code 3 if nothing could be measured of what is missing, 4 if others
    keep the machine too busy to time, 5 if a run failed.
    """
    with understandable(as_json):
        check_reached(training)
        from suite.measure.asked import Names, pairs_asked
        from suite.measure.campaign import measure
        from suite.measure.controls import control_pairs

        names = Names(techniques or (), on or (), sizes or (), recipe or (), ranks)
        pairs, broken = pairs_asked(names, vars(training) | vars(machine), partial(blamed, context))
        for reason in broken.values():
            warn(f"left out: {reason}")
        if not pairs:
            fail("no technique of these names one of these baselines in its card", Exit.NOTHING, as_json)
        effort = evidence.effort(learning)
        if renew and peers:
            raise ValueError("--renew times nothing, and --peers nothing else: leave one of them out")
        if renew:
            effort = replace(effort, wanted=effort.wanted.to_renew)
        if peers:
            pairs, effort = _beside_peers(pairs, as_json), replace(effort, wanted=effort.wanted.to_time)
        else:
            pairs += control_pairs(pairs)
        if dry:
            return _foresee(pairs, learning.results, effort, as_json)
        with tracking(sinks) as sent, bar(quiet=as_json) as progress:
            measured = measure(pairs, learning.results, effort, progress=progress, warn=warn, stored=sent)
    if as_json:
        print(json.dumps([json.loads(piece.model_dump_json()) for piece in measured.added]))
    else:
        _show_measured(measured, pairs, learning.results, together=bool(techniques))
    leave(measured, failed=bool(broken))


def _beside_peers(pairs: Sequence[Pair], as_json: bool) -> list[Pair]:
    """Returns the stacks beside other packages' implementations of them; ends the command where none is installed."""
    from suite.entries.packages import how_to_install
    from suite.topics.peers.peer_stacks import peer_pairs, with_updates

    against_peers, absent = peer_pairs(pairs)
    for package in absent:
        warn(f"not measured beside {package}, which is not installed: {how_to_install(package)}")
    if not against_peers:
        fail("no technique of these has a peer that is installed", Exit.NOTHING, as_json)
    return with_updates(against_peers)


def _show_measured(measured: Measured, pairs: Sequence[Pair], folder: Path, together: bool) -> None:
    """Prints what a run measured, what failed and what is known now; ``together``: all pairs side by side, first."""
    from suite.measure.contenders.result import results_of
    from suite.record.store import Store
    from suite.show.pages.beside import HEAD, beside

    if measured.left and not measured.tally:
        out.print(escape(measured.sentence))
    for stack, status, reason in dict.fromkeys(measured.failures):
        err.print(f"{escape(stack)}: {status}: {escape(reason)}")
    records, _ = Store(folder).read()
    if together:
        show_table(HEAD, beside(results_of(pairs, records)), whole=(0, 1, 2))
    known = _rows(pairs, records)
    new_ids = {piece.id for piece in measured.added}
    if fresh := [row for row in known if new_ids & {*row.records}]:
        show_table(*_table(fresh), title="With what was measured here, in this run", whole=(0, 1))
    for sentence in _answers(known, new_ids):
        out.print(escape(sentence))
    seen = f"see all of it with: leantrain leaderboard --results {folder}"
    if folder != RESULTS:
        seen += f" --write {folder / 'leaderboard.md'}"
    out.print(escape(f"{measured.sentence}; {seen}"))


def _foresee(pairs: Sequence[Pair], folder: Path, effort: Effort, as_json: bool) -> None:
    """Prints what measuring the pairs would take."""
    from suite.measure.forecast import forecast
    from suite.measure.missing import CampaignPlan
    from suite.record.store import Store

    records, _ = Store(folder).read()
    foreseen = forecast(CampaignPlan(pairs, records, effort.wanted), records)
    if as_json:
        print(json.dumps({"cores": foreseen.cores, "parts": [asdict(part) for part in foreseen.parts]}))
    else:
        out.print(f"{foreseen.sentence}; of a budget of {effort.minutes:g} min")


def _rows(pairs: Sequence[Pair], records: Records) -> list[Row]:
    """Returns this machine's rows of the pairs, and those of pairs that it has not timed."""
    from suite.judge.rows import rows
    from suite.measure.provenance import conditions_of
    from suite.record.machine import fingerprint

    asked = {(conditions_of(pair.setting).key, pair.stack, pair.reference) for pair in pairs}
    here = fingerprint(pairs[0].setting.device, pairs[0].setting.threads).key
    known = [row for row in rows(records) if (row.conditions.key, row.stack, row.reference) in asked]
    return [row for row in known if row.machine.key == here or not row.known.timed]


def _table(rows: Sequence[Row], most: int = 24) -> tuple[list[str], list[list[str]]]:
    """Returns the heading and lines of what each row cost: each baseline's fastest steps first."""
    from suite.judge.metrics import METRICS
    from suite.show.pages.board import text

    shown = [METRICS[name] for name in ("step_time", "peak_tensor_bytes", "flops")]
    best = sorted(rows, key=lambda row: (row.conditions.baseline, row.value("step_time").number, row.stack))
    lines = [
        [row.conditions.baseline, row.stack, *(text(row.value(metric.name), metric.direction) for metric in shown)]
        for row in best[:most]
    ]
    if len(best) > most:
        lines.append(["", f"and {len(best) - most} more", *[""] * len(shown)])
    return ["baseline", "technique", *(metric.heading for metric in shown)], lines


def _answers(rows: Sequence[Row], new_ids: Collection[str], most: int = 12) -> list[str]:
    """Tells what is known of the rows now: a sentence each, those of which something was ``made`` now first, then the
    best; each says whose curves they are."""
    from suite.show.pages.board import HEADLINE
    from suite.show.terminal import answer

    known = [row for row in rows if answer(row)]
    known.sort(key=lambda row: (not {*row.records} & {*new_ids}, row.value(HEADLINE.name).number))
    sentences = []
    for row in known:
        old = "" if {*row.records} & {*new_ids} else " (from records that were here)"
        sentences.append(f"{row.conditions.baseline}: {answer(row)}{old}")
    more = len(sentences) - most
    return sentences[:most] + ([f"and {more} more"] if more > 0 else [])


@app.command(rich_help_panel=MEASURE)
@with_options
def compare(
    stack: Stack,
    against: Annotated[
        str | None,
        typer.Argument(help="What to compare it with. [the reference its card names]", **OF_STACKS),
    ] = None,
    *,
    target: TargetOptions,
    training: TrainingOptions,
    machine: MachineOptions,
    learning: LearningOptions,
    evidence: EvidenceOptions,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Draw loss curves and paired ratios to this file (.svg, .pdf, .png)."),
    ] = None,
    sinks: SinkOptions,
    as_json: Json = False,
) -> None:
    """Compare two stacks head to head on one baseline, and print the ratios with their intervals.

    Several runs of each side learn, and several pairs of fresh processes are timed in lock-step. Below stands what is
    kept of the pair's steps on GPUs at the papers' sizes: modelled, never measured. Exit code 4 if others keep the
    machine too busy to time, 5 if a run failed.
    """
    with understandable(as_json):
        check_reached(training)
        from suite.entries.setting import task_named
        from suite.judge.rows import as_dict
        from suite.measure.asked import check_pairs
        from suite.measure.campaign import measure
        from suite.measure.contenders.result import result_of
        from suite.measure.missing import pair_of
        from suite.record.store import Store
        from suite.show.pictures.drawing import check_format, save
        from suite.show.terminal import summary
        from suite.topics.board.plots import figure
        from suite.topics.modelled_time import gpu_time_on_page, gpu_times

        setting = setting_of(target, training, machine)
        if write:
            check_format(write)
        pair = pair_of(setting, stack, against, task_named(training.task))
        check_pairs([pair])
        modelled = gpu_times.read(learning.results)
        with tracking(sinks) as sent, bar(quiet=as_json) as progress:
            measured = measure(
                [pair], learning.results, evidence.effort(learning), progress=progress, warn=warn, stored=sent
            )
        row = result_of(pair, Store(learning.results).read()[0])
        if write:
            save(figure(row), write)
    if as_json:
        steps = [time.model_dump(mode="json") for time in gpu_time_on_page.of_pair(row, modelled)]
        print(json.dumps(as_dict(row) | {"modelled_steps": steps}, indent=1))
    else:
        out.print(escape("\n".join([summary(row), *gpu_time_on_page.sentences(row, modelled)])))
    leave(measured, failed=row.failed or bool(row.failures))


@app.command(rich_help_panel=MORE)
@with_options
def stack(
    techniques: Annotated[
        str,
        typer.Argument(metavar="A+B[+C]", help="The stack, e.g. lion+lawa or lion+lawa:k=4.", **OF_STACKS),
    ],
    against: Annotated[
        str | None,
        typer.Argument(help="What to compare all with. [the reference that their cards name]", **OF_STACKS),
    ] = None,
    *,
    target: TargetOptions,
    training: TrainingOptions,
    machine: MachineOptions,
    learning: LearningOptions,
    evidence: EvidenceOptions,
    as_json: Json = False,
) -> None:
    """Do techniques still help together? Time a stack and its parts together; print their interaction.

    The interaction is the stack's speedup over the product of its parts' speedups, with its interval.
    """
    with understandable(as_json):
        check_reached(training)
        from suite.entries.setting import task_named
        from suite.judge import interaction, rows
        from suite.measure.asked import check_pairs
        from suite.measure.campaign import measure
        from suite.measure.contenders.result import result_of_stack
        from suite.measure.missing import pairs_of_stack
        from suite.record.store import Store
        from suite.topics.stacks import stacks_on_board as stacks

        setting = setting_of(target, training, machine)
        pairs = pairs_of_stack(setting, techniques, against, task_named(training.task))
        check_pairs(pairs)
        with bar(quiet=as_json) as progress:
            measured = measure(
                pairs, learning.results, evidence.effort(learning), together=True, progress=progress, warn=warn
            )
        result = result_of_stack(pairs, Store(learning.results).read()[0])
    if as_json:
        values = interaction.as_dict(result)
        print(json.dumps(values | {"rows": [rows.as_dict(row) for row in result.rows]}, indent=1))
    else:
        head, lines = stacks.table(result)
        out.print(escape(stacks.title(result)))
        show_table(head, lines)
        for sentence in (*stacks.notes(result), stacks.READING):
            out.print(escape(sentence))
    leave(measured, failed=bool(result.failed))


def _studied(incomplete: str) -> list[str]:
    from suite.entries.catalogue import catalogue

    begun = [entry for name, entry in catalogue().items() if name.startswith(incomplete)]
    return [entry.id for entry in begun if entry.card.study or (entry.folder / "study.py").is_file()]


def _check_studied(id: str) -> None:
    from suite.entries.catalogue import catalogue, lookup

    if id not in catalogue():  # one without a study says so itself
        lookup("technique with a study", id, dict.fromkeys(_studied("")))


@app.command(rich_help_panel=MORE)
@with_options
def study(
    id: Annotated[
        str,
        typer.Argument(
            help="A technique that has a study.", autocompletion=_studied, callback=refusing(_check_studied)
        ),
    ],
    *,
    target: TargetOptions,
    machine: MachineOptions,
    learning: LearningOptions,
    write: Annotated[Path | None, typer.Option("--write", help="A folder for the tables (CSV) and the plot.")] = None,
    as_json: Json = False,
) -> None:
    """Answer a technique's question over many runs: print its tables, write them and its plot.

    Without -b it is for gpt, or else the first baseline that the study is for. What it finds is kept beside the
    machine's records, and shown by `leantrain leaderboard`.
    """
    with understandable(as_json):
        from suite.entries.catalogue import catalogue
        from suite.record.files import replacing
        from suite.topics.studies.lab import Lab
        from suite.topics.studies.study import baseline_for, stored_form, study_of, write_study
        from suite.topics.studies.study_plots import keep as keep_plot

        setting = setting_of(target, machine=machine)
        entry = catalogue()[id]
        question = study_of(entry)
        setting = setting.but(baseline=baseline_for(entry, question, target.baseline))
        with bar(quiet=as_json) as progress:
            lab = Lab(setting, learning.results, learning.seeds, learning.minutes, progress, warn)
            answer = stored_form(lab, entry, question.study(lab))
        tables, path = answer.tables, write_study(answer, learning.results)
        if path:
            try:
                keep_plot(answer, learning.results)
            except Exception as error:  # the tables are kept, and a page says why it shows no plot
                warn(f"no plot: {error}")
        if write:
            for table in tables:
                with replacing(write / f"{table.name}.csv") as partial:
                    partial.write_text(table.as_csv(), "utf-8")
            if hasattr(question, "plot"):
                with replacing(write / f"{id}.svg") as partial:
                    question.plot(tables).savefig(partial, format="svg")
    err.print(f"kept: {escape(str(path))}" if path else "not kept: every table is empty")
    if as_json:
        print(json.dumps({table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in tables}))
        return
    for table in tables:
        show_table(table.columns, table.as_text(), title=f"{table.name}. {table.note}")


@app.command(rich_help_panel=MORE)
def repro(
    record: Annotated[
        str | None,
        typer.Argument(help="A record's id, or its beginning; `claims ID` prints ids. [the quickest of the curves]"),
    ] = None,
    folder: KnownResults = RESULTS,
    data: Annotated[str | None, typer.Option("--data", help="Where the record's data is. [embedded data]")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Store the repetition: of two records of the same the board shows the newer.")
    ] = False,
    time_limit: Limit = 3600.0,
    hang_limit: Hang = 600.0,
    as_json: Json = False,
) -> None:
    """Measure one record again, and say whether the two agree. Stores nothing unless asked to.

    Counts must be equal; what was learned equal to the bit, or, where the arithmetic is another, equal up to rounding:
    no further apart than runs whose weights were moved by one unit in the last place. Cost ratios must be as near as
    noise allows, by the spread over the record's replicates. Where code changed since, it says so, and --keep of a run
    that is equal to the bit renews what the older code learned. Exit code 1 if the two disagree, 3 if that cannot be
    decided: libraries or the machine are others, or the noise is unknown or too large.
    """
    with understandable(as_json):
        from suite.record.store import NoRecord, Store

        if record is not None and not Store(folder).mentions(f'"{record}'):  # before torch is loaded
            raise NoRecord.beginning(record)
        from suite.entries.setting import check_device
        from suite.guard import agreement
        from suite.measure.contenders.contender import Limits
        from suite.record.machine import fingerprint

        records, _ = Store(folder).read()
        old: agreement.Piece
        if record is None:
            old = agreement.quickest(records, fingerprint("cpu", 1))
        else:
            old = agreement.find(records, record)
        check_device(old.conditions.device)
        machine = fingerprint(old.conditions.device, old.conditions.threads)
        new, findings = None, []
        verdict: ChangeVerdict = "not comparable"
        forbidden = agreement.obstacles(old, machine)
        why = [*forbidden, *agreement.other_code(old)]
        why += agreement.way_back(old) if why else []
        if not forbidden:
            setting, limits = agreement.setting_of(old, data), Limits(time_limit, hang_limit)
            with bar(quiet=as_json) as progress:
                new = agreement.repeat(old, setting, keep=folder if keep else None, limits=limits, progress=progress)
            findings = agreement.compare(
                old,
                new,
                lambda index, ratio: agreement.noise_of(old, index, ratio, records.timed),
                agreement.room(old, new, setting, limits),
            )
            verdict = agreement.overall(findings)
    if as_json:
        answer = {
            "record": old.id,
            "verdict": verdict,
            "why": why,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(answer | {"repetition": json.loads(new.model_dump_json()) if new else None}, indent=1))
    else:
        if findings:
            lines = [(finding.item, finding.aspect, finding.verdict, finding.details) for finding in findings]
            show_table(("of", "what", "verdict", "seen"), lines)
        out.print(escape(f"{agreement.title(old)}: {'; '.join([agreement.in_words(old, verdict), *why])}"))
    if verdict not in ("equal", "equivalent"):
        raise typer.Exit(int(Exit.REGRESSED if verdict == "changed" else Exit.INCONCLUSIVE))


def leave(measured: Measured, failed: bool = False) -> None:
    """Ends the command with the exit code of what was measured; returns where all went well."""
    if failed or measured.failures:
        raise typer.Exit(int(Exit.RUN_FAILED))
    if measured.busy:
        raise typer.Exit(int(Exit.UNFIT))
    if measured.left and not measured.tally:
        raise typer.Exit(int(Exit.INCONCLUSIVE))


@contextmanager
def tracking(sinks: SinkOptions) -> Iterator[Any]:
    """Yields what sends stored evidence to the sinks; says at the end, however it comes, where it is."""
    trackers = [tracker(warn) for tracker in sinks.trackers]

    def send(line: Line) -> None:
        for tracker in trackers:
            tracker(line)

    try:
        yield send
    finally:
        for tracker in trackers:
            err.print(escape(tracker.where))
