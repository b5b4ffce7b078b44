"""Has the command that puts a stack into a loop of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suite.cli.options import OF_STACKS, Json
from suite.cli.shared import CHOOSE, app, out, show_table, understandable


@app.command(rich_help_panel=CHOOSE)
def apply(
    stack: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--technique",
            help="The technique or stack, e.g. lora+adam8bit_blockwise+ckpt_chen_sqrt.",
            **OF_STACKS,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A Hugging Face or timm folder, or a timm model's name."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="The script's file. [standard output]", dir_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the few lines that train a model of yours with a stack, for a loop of yours.

    The script loads the model, attaches the stack and makes its steps. Without -t: which techniques have a meaning in
    a loop of your own and, in one sentence each, why the others have none.
    """
    with understandable(as_json):
        if stack is None:
            _show_table(as_json)
            return
        if model is None:
            raise ValueError("name your model, --model FOLDER: how a step is written depends on what it reads")
        from leantrain.train_step import script
        from suite.record.files import replacing

        text = script(stack, model)
        if write is not None:
            with replacing(write) as partial:
                partial.write_text(text, "utf-8")
    if as_json:
        print(json.dumps({"stack": stack, "model": model, "script": text, "file": str(write) if write else None}))
    elif write is None:
        print(text, end="")
    else:
        out.print(f"{write}: begin, train_step and train; call train(loader, steps) or take its lines into your loop")


def _show_table(as_json: bool) -> None:
    from suite.entries.catalogue import catalogue

    reasons = {name: entry.card.own_loop for name, entry in catalogue().items()}
    if as_json:
        print(
            json.dumps({name: {"applies": not reason, "why_not": reason or None} for name, reason in reasons.items()})
        )
        return
    show_table(("technique", "in a loop of yours"), [(name, reason or "applies") for name, reason in reasons.items()])
