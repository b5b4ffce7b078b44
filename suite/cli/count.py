"""The command that counts what a step costs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from suite.cli.options import (
    Json,
    ModelOption,
    OneBaseline,
    OneRecipe,
    SizeOption,
    TargetOptions,
    TaskOption,
    TrainingOptions,
    device_named,
    setting_of,
    task_of,
    technique_names,
    words,
)
from suite.cli.shared import MEASURE, Exit, app, bar, escape, out, show_table, understandable


@app.command(rich_help_panel=MEASURE)
def count(
    stacks: Annotated[
        list[str],
        typer.Option(
            "-t",
            "--technique",
            help="A technique or a stack like lion+lora:rank=4, or baseline; repeatable.",
            autocompletion=technique_names,
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
        str,
        typer.Option(
            "--device",
            help="Whose operators: cuda, a GPU's (none is needed), or cpu.",
            autocompletion=words("cpu", "cuda"),
        ),
    ] = "cuda",
    as_json: Json = False,
) -> None:
    """Count one step at the paper's own size, in seconds and without its memory: parameters, state, activations, FLOPs.

    Of a technique and its reference, exactly, on tensors that have shapes and no values, by the operators that a GPU
    would run. Exit code 4 if none of the techniques can be counted so; the reason says which value it asked for.
    """
    with understandable(as_json):
        from suite.contract.stack import build
        from suite.measure import paper_scale
        from suite.show.counts import lines, notes, title

        for stack in stacks:
            build(stack)
        training = TrainingOptions(task=task, steps=steps, model=model)
        scale = paper_scale.Scale(
            setting_of(TargetOptions(baselines, size, recipes), training).but(device=device_named(device)),
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
        if counted := lines(each):
            numbers = range(1, len(columns))
            show_table(columns, counted, whole=range(len(columns)), right=numbers)
        for note in notes(each):
            out.print(escape(note))
        out.print()
    if all(each.stack.counters is None for each in counts):
        raise typer.Exit(int(Exit.UNFIT))
