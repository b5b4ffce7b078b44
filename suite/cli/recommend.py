"""Has the command that says which stack fits a model and a memory, and is best for a goal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from suite.cli.count import Batch, SequenceLength
from suite.cli.options import (
    OF_DEVICES,
    RESULTS,
    Json,
    KnownResults,
    ModelOption,
    OneBaseline,
    OneRecipe,
    SizeOption,
    TargetOptions,
    TaskOption,
    Threads,
    TrainingOptions,
    device_named,
    gpu_option,
    minutes_option,
    refusing,
    setting_of,
    stacks_option,
)
from suite.cli.shared import CHOOSE, Exit, app, bar, escape, out, show_table, understandable
from suite.record.amounts import bytes_of

if TYPE_CHECKING:
    from suite.topics.recommend.whole_answer import Recommendation

SHOWN = 10  # of the counted stacks


def _goals(incomplete: str) -> list[str]:
    from suite.topics.recommend.choice import GOALS

    return [goal for goal in GOALS if goal.startswith(incomplete)]


def _check_goal(goal: str) -> None:
    from suite.entries.setting import chosen
    from suite.topics.recommend.choice import GOALS

    chosen("goal", goal, GOALS)


@app.command(rich_help_panel=CHOOSE)
def recommend(
    memory: Annotated[str, typer.Option("--memory", help="The device's: 24GB, 80GiB.", callback=refusing(bytes_of))],
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            help="time (to the same quality), memory or quality.",
            autocompletion=_goals,
            callback=refusing(_check_goal),
        ),
    ] = "time",
    model: ModelOption = None,
    baselines: OneBaseline = None,
    size: SizeOption = "nano",
    recipes: OneRecipe = None,
    task: TaskOption = None,
    stacks: Annotated[list[str] | None, stacks_option("A stack of yours to hold against them; repeatable.")] = None,
    batch: Batch = None,
    sequence_length: SequenceLength = None,
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu or cuda: whose operators. [cuda with --gpu, else cpu]", **OF_DEVICES),
    ] = None,
    gpu: Annotated[
        str | None, gpu_option("Order by times modelled on this GPU: A100-80, H100, ... None need be here.")
    ] = None,
    counts: Annotated[int, typer.Option("--counts", min=2, help="Stacks that are counted at most.")] = 30,
    minutes: Annotated[float, minutes_option("Minutes of measuring, about.")] = 10.0,
    threads: Threads = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count and order, and say what would be measured; measure nothing.")
    ] = False,
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Recommend the stack of techniques for a model, a memory and a goal: counted at its size, then measured here.

    Stacks of up to three techniques that go together are counted exactly, and what cannot fit is never run. The rest
    is ordered by measured or modelled time and by the records of quality; the first six are measured by successive
    halving, in lock-step, and the best without each of its members. Where nothing can be measured, the answer is by
    counts and records, and says so. Exit code 1 if nothing fits.
    """
    with understandable(as_json):
        from suite.entries.catalogue import lookup
        from suite.measure.at_scale.full_size import Scale
        from suite.topics.modelled_time.devices import by_any_name
        from suite.topics.recommend.choose import Question
        from suite.topics.recommend.whole_answer import recommend as answer_to

        at = setting_of(TargetOptions(baselines, size, recipes), TrainingOptions(task=task, model=model))
        if at.recipe == "compiled":
            raise ValueError("the peak of compiled code is decided when it is generated: choose by --recipe modern")
        where = device_named(device or ("cuda" if gpu else "cpu"), gpu)
        question = Question(
            Scale(at.but(device=where, threads=threads), batch, sequence_length),
            bytes_of(memory),
            goal,  # type: ignore[arg-type]
            lookup("GPU", gpu, by_any_name()) if gpu else None,
            counts,
            tuple(stacks or ()),
        )
        with bar(quiet=as_json) as progress:
            answer = answer_to(question, folder, minutes, run=not dry_run, progress=progress)
    _show(answer, as_json)
    if answer.best is None:
        raise typer.Exit(int(Exit.REGRESSED))


def _show(answer: Recommendation, as_json: bool) -> None:
    from suite.topics.recommend import recommendation as shown

    if as_json:
        print(json.dumps(shown.as_dict(answer), indent=1))
        return
    ranking, plain = answer.choice.ranking, answer.choice.plain
    for line in shown.title(answer):
        out.print(escape(line))
    out.print(escape(shown.answer_in_words(answer)))
    if answer.measured:
        peaks = {candidate.stack: candidate.cost.peak_bytes for candidate in (*ranking.fitting, *ranking.too_large)}
        for rung in answer.measured.rungs:
            show_table(
                shown.MEASURED,
                shown.measured(rung, peaks),
                title=f"measured over {rung.steps} steps, over {answer.measured.reference}",
            )
    if answer.contributions:
        show_table(
            shown.CONTRIBUTED, shown.contributed(answer.contributions), title="the stack over what is left of it"
        )
    fitting = shown.ranked(ranking.fitting[:SHOWN], plain.peak_bytes)
    show_table(shown.RANKED, fitting, title="fits, in the order of the goal; expected of the members' records")
    too_large = shown.ranked(ranking.too_large[:SHOWN], plain.peak_bytes)
    if too_large:
        show_table(shown.RANKED[:3], [line[:3] for line in too_large], title="does not fit, and was not run")
    notes = {note for candidate in ranking.fitting[:SHOWN] for note in candidate.notes}
    for note in sorted(notes):
        out.print(escape(note))
    out.print("Not tried:")
    for line in shown.untried(answer):
        out.print(escape(f"  {line}"))
