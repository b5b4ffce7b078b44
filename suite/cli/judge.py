"""Has the command that judges runs which leantrain never saw, by their logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from suite.cli.options import Json, Options, with_options, words
from suite.cli.shared import MEASURE, Exit, app, escape, out, show_table, understandable, warn

Named = list[str] | None


def _column(role: str, what: str) -> object:
    return typer.Option(f"--{role}", help=f"The column of {what}; repeatable where logs differ. [guessed, and said]")


@dataclass(frozen=True)
class ColumnOptions(Options):
    """Names the columns of logs."""

    step: Annotated[Named, _column("step", "steps")] = None
    loss: Annotated[Named, _column("loss", "the loss, or of what else is compared")] = None
    tokens: Annotated[Named, _column("tokens", "tokens")] = None
    flops: Annotated[Named, _column("flops", "FLOPs")] = None
    seconds: Annotated[Named, _column("seconds", "seconds since the run began (with a name that ends in _ms: ms)")] = (
        None
    )
    seed: Annotated[Named, _column("seed", "seeds")] = None
    run: Annotated[Named, _column("run", "what tells several runs in one file apart")] = None


@dataclass(frozen=True)
class TextOptions(Options):
    """Says how logs in plain text are read."""

    pattern: Annotated[
        Named,
        typer.Option(
            "--pattern",
            help=r"A regular expression with named groups, of a line of a text log, as `step:(?P<step>\d+) "
            r"val_loss:(?P<loss>\S+)`; repeatable. Groups ms, minutes and hours become seconds.",
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            help="Whose lines a text log has: nanochat, modded-nanogpt, parameter-golf, torchtitan or composer. [seen]",
            autocompletion=words("nanochat", "modded-nanogpt", "parameter-golf", "torchtitan", "composer"),
        ),
    ] = None


@app.command(rich_help_panel=MEASURE)
@with_options
def judge(
    reference: Annotated[
        list[str], typer.Option("--reference", help="Logs of the reference: files, folders, 'patterns*'; repeatable.")
    ],
    contender: Annotated[list[str], typer.Option("--contender", help="Logs of what is compared with it; repeatable.")],
    columns: ColumnOptions,
    text: TextOptions,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            help="What budgets are counted in: tokens, steps, flops or seconds. [tokens, else steps, else flops]",
            autocompletion=words("tokens", "steps", "flops", "seconds"),
        ),
    ] = None,
    better: Annotated[
        str | None,
        typer.Option("--better", help="lower or higher. [as the name says]", autocompletion=words("lower", "higher")),
    ] = None,
    tuned: Annotated[
        str | None,
        typer.Option(
            "--tuned",
            help="Which side had its learning rate tuned: both, contender or no.",
            autocompletion=words("both", "contender", "no"),
        ),
    ] = None,
    mid_schedule: Annotated[
        bool,
        typer.Option("--mid-schedule", help="Read a curve inside runs of one length, whose schedule had not ended."),
    ] = False,
    write: Annotated[Path | None, typer.Option("--write", help="Draw it to this file (.svg, .pdf, .png).")] = None,
    as_json: Json = False,
) -> None:
    """Judge anyone's runs by their logs: what a contender's losses are worth in the reference's budget.

    Reads CSV, TSV, JSON, JSON Lines, Parquet, trainer_state.json, TensorBoard's event files, W&B's exports and offline
    runs, trackio's databases, and text logs. The reference's runs of three lengths or more, each to the end of its
    schedule, make its scaling curve, on which a final loss is read as a budget; with fewer the answer is the ratio of
    losses.

    Warnings say what makes such comparisons wrong, as far as logs can tell.

    Exit code 3 where the interval at the longest runs does not exclude "no difference".
    """
    with understandable(as_json):
        from suite.show.pictures import drawing
        from suite.topics.foreign_runs.guessed_columns import ColumnNames
        from suite.topics.foreign_runs.judgement import JudgeOptions, judged
        from suite.topics.foreign_runs.log_formats import files_of, read

        if write:
            drawing.check_format(write)
        named = {name: tuple(own or ()) for name, own in vars(columns).items()}
        options = JudgeOptions(ColumnNames(**named), unit or "", better or "", tuned or "", mid_schedule)
        sides = [
            [
                table
                for path in files_of(patterns, option)
                for table in read(path, text.pattern or (), text.preset or "")
            ]
            for option, patterns in (("--reference", reference), ("--contender", contender))
        ]
        judgement = judged(sides[0], sides[1], options)
        if write:
            from suite.topics.foreign_runs import judgement_plot

            drawing.save(judgement_plot.drawing(judgement), write)
    if as_json:
        print(json.dumps(judgement.as_dict(), indent=1))
    else:
        from suite.topics.foreign_runs.judgement_in_words import HEAD, lines

        for caution in judgement.cautions:
            warn(caution)
        out.print(escape(f"read as {'; '.join(judgement.said)}"))
        show_table(HEAD, lines(judgement), whole=(0, 4))
        out.print(escape(str(judgement)))
    if not judgement.decided:
        raise typer.Exit(int(Exit.INCONCLUSIVE))
