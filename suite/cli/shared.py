"""What the commands share: the application, exit codes, options, and how errors and progress are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperGroup

if TYPE_CHECKING:
    from suite.record.job import Size


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


class Commands(TyperGroup):
    """Answers a malformed call, too, in JSON where it asks for that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.meta["as_json"] and hasattr(error, "format_message"):  # the parser's: it has no public name
                print(json.dumps({"error": error.format_message(), "exit_code": int(Exit.USAGE)}))
            raise


app = typer.Typer(
    cls=Commands,
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
    from suite.contract.catalogue import UnknownId
    from suite.contract.technique import Unavailable
    from suite.measure.contender import ContenderFailed
    from suite.record.store import NoRecord, StoreError

    try:
        yield
    except (UnknownId, NoRecord, ValueError) as error:  # ValueError: of a bad stack, card, model, option, too
        fail(str(error), Exit.USAGE, as_json)
    except Unavailable as error:
        fail(str(error), Exit.UNFIT, as_json)
    except (StoreError, ContenderFailed) as error:
        fail(str(error), Exit.RUN_FAILED, as_json)
    except OSError as error:  # what it was to read or write; a traceback's exit code of 1 would say "regressed"
        why = f"{error.filename}: {error.strerror}; name another place" if error.filename else str(error)
        fail(why, Exit.USAGE, as_json)
    except KeyboardInterrupt:
        fail("interrupted; what was measured is kept, the same command continues", Exit.INTERRUPTED, as_json)


def chosen(kind: str, value: str, among: tuple[str, ...]) -> Any:
    from suite.contract.catalogue import lookup

    return lookup(kind, value, {each: each for each in among})


def usable_device(device: str, as_json: bool) -> None:
    import torch

    if chosen("device", device, ("cpu", "cuda")) == "cuda" and not torch.cuda.is_available():
        why = "torch was built without CUDA" if not torch.backends.cuda.is_built() else "torch sees no CUDA GPU"
        fail(f"--device cuda: {why} on this machine; leave the option out to run on the CPU", Exit.UNFIT, as_json)


def usable_model(model: str | None, on: Iterable[str], size: Size, data: str | None) -> None:
    """Raises what a baseline says of a ``model`` that cannot take its own model's place, before a run is spent on it.

    Raises ValueError or OSError.
    """
    import torch

    from suite.contract.baseline import baselines
    from suite.model.anatomy import anatomy

    for name in on if model else ():
        baseline = baselines()[name]
        found = baseline.data(size, "pretrain", data)
        with suppress(RuntimeError), torch.device("meta"):  # of a model that needs values to be built a run will tell
            anatomy(baseline.model(size, found, model))


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
