"""Has the commands that count what a step costs, and plan what it may."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suite.cli.options import (
    OF_DEVICES,
    RESULTS,
    Json,
    ModelOption,
    OneBaseline,
    OneRecipe,
    Results,
    SizeOption,
    TargetOptions,
    TaskOption,
    TrainingOptions,
    device_named,
    gpu_option,
    minutes_option,
    named,
    refusing,
    setting_of,
    stacks_option,
)
from suite.cli.shared import CHOOSE, MORE, Exit, app, bar, escape, many, out, show_table, understandable, warn
from suite.record.amounts import bytes_of

if TYPE_CHECKING:
    from suite.measure.at_scale.full_size import Scale, SideBySide
    from suite.record.job import Task
    from suite.topics.modelled_time.aside import Aside
    from suite.topics.modelled_time.traced import TimesBeside

AUTO = "auto"
ASKED_MINUTES, KEPT_MINUTES = 1.0, 10.0  # somebody waits for the first
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Examples a step. [the baseline's]")]
BatchOrAuto = Annotated[
    str | None,
    typer.Option("--batch", help="Examples a step, or auto: the most that fit the memory. [the baseline's]"),
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", "--length", min=8, help="Tokens a sequence. [the baseline's]")
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=2,
        help="Processes that train together, each with the baseline's batch or its share of --batch; rank 0 is "
        "counted. [the technique's]",
    ),
]
Minutes = Annotated[
    float | None, minutes_option("Minutes of one core that a count may take. [1; with --keep 10]", least=0.01)
]
Operators = Annotated[
    str,
    typer.Option(
        "--device",
        help="Whose operators: cuda, a GPU's (none is needed), or cpu.",
        **OF_DEVICES,
    ),
]


@app.command(rich_help_panel=CHOOSE)
def count(
    context: typer.Context,
    stacks: Annotated[
        list[str] | None,
        stacks_option("A technique or a stack like lion+lora:rank=4, or baseline; repeatable. [with --keep: all]"),
    ] = None,
    baselines: OneBaseline = None,
    size: SizeOption = "base",
    recipes: OneRecipe = None,
    task: TaskOption = None,
    model: ModelOption = None,
    batch: Batch = None,
    sequence_length: SequenceLength = None,
    ranks: Ranks = None,
    steps: Annotated[
        int, typer.Option("--steps", min=2, help="A whole run of so many steps comes before the counted one.")
    ] = 2,
    device: Operators = "cuda",
    gpu: Annotated[
        str | None,
        gpu_option("Model the step's time and energy on this GPU, too: A100-80, H100, L4, ... None need be here."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the counts, with --gpu the modelled times, in the results folder, for the board."
        ),
    ] = False,
    minutes: Minutes = None,
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Count one step at the paper's own size, in seconds and without its memory: parameters, state, activations, FLOPs.

    Of a technique and its reference, exactly, on tensors that have shapes and no values, by the operators that a GPU
    would run; of several ranks, what the first holds and sends. With --gpu also its time and energy there, modelled and
    never measured: by class of operator, with the band that 9 of 10 published steps kept within. Exit code 4 if none of
    the techniques can be counted so; the reason says which value it asked for. Exit code 5 if one crashed or took more
    than --minutes: the others are counted all the same.
    """
    with understandable(as_json):
        if named(context, "folder") and not keep:
            raise ValueError("--results says where counts are kept: add --keep, or leave it out")
        from suite.entries.setting import task_named
        from suite.measure.at_scale import full_size as paper_scale
        from suite.topics.modelled_time.aside import aside

        asked = setting_of(
            TargetOptions(baselines, size, recipes), TrainingOptions(task=task, steps=steps, model=model)
        )
        scale = paper_scale.Scale(asked.but(device=device_named(device, gpu)), batch, sequence_length, ranks)
        wanted, core_s = task_named(task), 60 * (minutes or (KEPT_MINUTES if keep else ASKED_MINUTES))
        if keep and gpu:
            return _keep_times(stacks, scale, wanted, gpu, folder, as_json, core_s)
        if keep:
            return _keep(stacks, scale, wanted, folder, as_json, core_s)
        if not stacks and not gpu:
            raise ValueError("name a technique with -t, or count all of them for the board with --keep")
        with bar(quiet=as_json) as progress, aside(core_s, traces_too=gpu is not None) as apart:
            apart.check(stacks or ())
            counts = paper_scale.side_by_side(
                stacks or ["baseline"], scale, wanted, progress, apart.counted, apart.asked
            )
            times = _times(counts, gpu, apart) if gpu else []
    if as_json:
        known = [pair.as_dict() for pair in counts]
        print(json.dumps([a | {"modelled": b.as_dict()} for a, b in zip(known, times)] or known, indent=1))
    else:
        for pair, modelled in zip_longest(counts, times):
            _show_counts(pair, modelled)
    if any(side.failed for pair in counts for side in (pair.stack, pair.reference) if side):
        raise typer.Exit(int(Exit.RUN_FAILED))
    if all(pair.stack.counters is None for pair in counts):
        raise typer.Exit(int(Exit.UNFIT))


def _show_counts(pair: SideBySide, times: TimesBeside | None) -> None:
    """Prints a stack's counts beside its reference's, and its modelled times where they are known."""
    from suite.show.counts import lines, notes, title

    out.print(escape(title(pair)))
    columns = ("", pair.reference.stack, pair.stack.stack, "ratio") if pair.reference else ("", pair.stack.stack)
    if counted := lines(pair):
        show_table(columns, counted, whole=range(len(columns)), right=range(1, len(columns)))
    for note in notes(pair):
        out.print(escape(note))
    if times:
        _show_times(times, pair)
    out.print()


def _times(counts: list[SideBySide], gpu: str, apart: Aside) -> list[TimesBeside]:
    """Returns the modelled times of what was counted."""
    from suite.topics.modelled_time.devices import by_any_name
    from suite.topics.modelled_time.traced import times_beside

    return [times_beside(pair, by_any_name()[gpu], trace=apart.traced) for pair in counts]


def _show_times(times: TimesBeside, counts: SideBySide) -> None:
    from suite.topics.modelled_time import gpu_time_in_words as gpu_time

    out.print(escape(gpu_time.title(times)))
    names = [side.stack for side in (times.reference, times.stack) if side]
    if lines := gpu_time.lines(times, counts):
        columns = ("", *names, "ratio") if times.reference else ("", *names)
        show_table(columns, lines, whole=range(len(columns)), right=range(1, len(columns)))
    for note in gpu_time.notes(times):
        out.print(escape(note))


def _check_kept(scale: Scale) -> None:
    """Raises ValueError where a scale is none that the board shows."""
    from suite.measure.at_scale.full_size import STEPS

    if scale.setting.model or scale.batch_size or scale.sequence_length or scale.ranks or scale.setting.steps != STEPS:
        at = scale.setting.baseline
        raise ValueError(
            f"what is kept is of {at}'s own model, batch and length, after {STEPS} steps: leave out --keep"
        )


def _keep_times(
    stacks: list[str] | None, scale: Scale, task: Task | None, gpu: str, folder: Path, as_json: bool, core_s: float
) -> None:
    """Models for the board the steps of these stacks, or of all, on a GPU, and keeps each when it is known."""
    from suite.entries.catalogue import catalogue
    from suite.topics.modelled_time import gpu_times
    from suite.topics.modelled_time.aside import aside
    from suite.topics.modelled_time.devices import by_any_name
    from suite.topics.modelled_time.traced import survey_times

    _check_kept(scale)
    device, at = by_any_name()[gpu], scale.setting.baseline
    name = device.name
    wanted = stacks or [id for id, entry in catalogue().items() if at in entry.card.baselines]
    with bar(quiet=as_json) as progress, aside(core_s) as apart:
        apart.check(wanted)
        known = survey_times(
            wanted,
            scale,
            device,
            folder,
            task,
            progress,
            apart.traced,
            apart.asked,
            lambda stack, why: warn(f"{stack}: {why}"),
        )
    shown = [time for time in known.times if time.gpu == name and time.stack in wanted]
    if as_json:
        print(json.dumps([time.model_dump() for time in shown], indent=1))
    else:
        out.print(f"{many(len(shown), 'modelled step')} on {name}: {folder / gpu_times.NAME}")


def _keep(
    stacks: list[str] | None, scale: Scale, task: Task | None, folder: Path, as_json: bool, core_s: float
) -> None:
    """Counts for the board what its file lacks, and shows what it has of these stacks."""
    from suite.entries.catalogue import catalogue
    from suite.measure.at_scale.full_size import StepCount, survey
    from suite.record import paper_scale
    from suite.record.job import canonical
    from suite.topics.at_scale.paper_scale_on_board import HEADINGS, cells, tables
    from suite.topics.modelled_time.aside import aside

    at = scale.setting.baseline
    _check_kept(scale)
    wanted = stacks or [name for name, entry in catalogue().items() if at in entry.card.baselines]
    failures: list[StepCount] = []
    with bar(quiet=as_json) as progress, aside(core_s) as apart:
        apart.check(wanted)
        known = survey(
            wanted,
            scale,
            paper_scale.read(folder),
            partial(paper_scale.write, folder=folder),
            task,
            progress,
            apart.counted,
            failures.append,
            apart.asked,
        )
    for failure in failures:
        warn(f"{failure.stack}: {failure.unavailable}")
    shown = known.only([canonical(stack) for stack in wanted], [at])
    if as_json:
        print(shown.model_dump_json(indent=1))
    for table in [] if as_json else tables(shown):
        out.print(escape(f"{table.place.title}. {table.reference}"))
        lines = [(pair.stack.stack, *cells(pair)) for pair in table.counted]
        show_table(HEADINGS, lines, whole=(0,), right=range(1, len(HEADINGS)))
        for pair in table.uncounted:
            out.print(escape(f"{pair.stack.stack}: unavailable: {pair.stack.unavailable}"))
        out.print()
    if not as_json:
        out.print(f"kept in {folder / paper_scale.NAME}")
    if failures:
        raise typer.Exit(int(Exit.RUN_FAILED))


def _examples(text: str) -> int:
    """Raises ValueError for what is no number of examples."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"--batch {text}: give a number of examples, 1 or more, or auto for the most that fit")
    return int(text)


def _flops(text: str) -> float:
    """Reads 400T: FLOPs per second. Raises ValueError."""
    amount = re.fullmatch(r"(\d*\.?\d+)\s*([MGTP]?)(?:FLOPS?(?:/s)?)?", text.strip(), re.IGNORECASE)
    if amount is None or not float(amount[1]) > 0:
        raise ValueError(f"{text!r} is no rate: write 400T for 400 TFLOP/s")
    return float(amount[1]) * 1000 ** {"": 0, "M": 2, "G": 3, "T": 4, "P": 5}[amount[2].upper()]


def _planned_for(gpu: str | None, memory: str | None, rate: str | None, link: str | None) -> tuple[int, Any]:
    """Returns the bytes of a GPU, and what moves and multiplies them, where the others do not say. Raises ValueError
    where nothing does."""
    from suite.topics.memory_plan.within_budgets import Device
    from suite.topics.modelled_time.devices import by_any_name
    from suite.topics.modelled_time.modelled import believed

    if gpu is None:
        if memory is None:
            raise ValueError("name the device's memory, --memory 24GB, or a GPU, --gpu A100-80")
        return int(bytes_of(memory)), Device(_flops(rate or "400T"), bytes_of(link or "50GB/s"))
    named = believed().calibrated(by_any_name()[gpu])
    reached = _flops(rate) if rate else named.product_flops_per_s("bfloat16")
    moved = bytes_of(link) if link else 1e9 * named.link_gb_s
    return int(bytes_of(memory) if memory else 1e9 * named.memory_gb), Device(reached, moved)


@app.command(rich_help_panel=MORE)
def plan(
    memory: Annotated[
        str | None, typer.Option("--memory", help="The device's: 24GB, 80GiB. [the GPU's]", callback=refusing(bytes_of))
    ] = None,
    stacks: Annotated[
        list[str] | None, stacks_option("A technique that plans schedules; repeatable. [all of them]")
    ] = None,
    baselines: OneBaseline = None,
    size: SizeOption = "base",
    recipes: OneRecipe = None,
    model: ModelOption = None,
    batch: BatchOrAuto = None,
    sequence_length: SequenceLength = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--flops",
            help="FLOPs a second that the device reaches on matrix products. [the GPU's, or 400T]",
            callback=refusing(_flops),
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            help="Bytes a second to the host, and as many back. [the GPU's, or 50GB/s]",
            callback=refusing(bytes_of),
        ),
    ] = None,
    gpu: Annotated[
        str | None, gpu_option("Plan for this GPU's memory, and by what it reaches: A100-80, H100, L4, ...")
    ] = None,
    device: Operators = "cuda",
    as_json: Json = False,
) -> None:
    """Plan a step within a device's memory: each solver's best schedule, with its predicted time and peak, in seconds.

    Recomputation and offloading only move the cost; the plan says what of. Peaks are counted at the model's own size,
    on tensors without values; times are modelled, FLOPs over --flops and bytes over --link. The last line installs the
    fastest in a loop of your own. Exit code 1 if no solver fits the memory.
    """
    with understandable(as_json):
        from suite.measure.at_scale.full_size import Scale
        from suite.topics.memory_plan import within_budgets as memory_plan
        from suite.topics.memory_plan.plans_in_words import lines, title

        asked = setting_of(TargetOptions(baselines, size, recipes), TrainingOptions(model=model))
        examples = None if batch in (None, AUTO) else _examples(str(batch))
        scale = Scale(asked.but(device=device_named(device)), examples, sequence_length)
        device_bytes, there = _planned_for(gpu, memory, rate, link)
        with bar(quiet=as_json) as progress:
            if batch == AUTO:
                memory_plan.solvers(stacks or ())
                most = memory_plan.largest_batch(scale, device_bytes, there, progress)
                scale = replace(scale, batch_size=most)
            planned = memory_plan.plan_all(scale, device_bytes, there, stacks or (), progress)
    if as_json:
        print(json.dumps(planned.as_dict(), indent=1))
    else:
        for line in title(planned):
            out.print(escape(line))
        show_table(("technique", "time", "of plain", "peak", "runs again", "moved out", "solved in"), lines(planned))
        for answer in planned.answers:
            if answer.plan is None:
                out.print(escape(f"{answer.technique}: {answer.why_not}"))
        if installing := next(filter(None, map(planned.line, planned.answers)), ""):
            out.print(escape(f"In a loop of yours, the fastest: {installing}"))
    if all(answer.plan is None for answer in planned.answers):
        raise typer.Exit(int(Exit.REGRESSED))
