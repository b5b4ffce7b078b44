"""Has what the commands share besides options: the application, exit codes, and how errors and progress are printed."""

from __future__ import annotations

import errno
import json
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer
from rich import markup
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from suite.process.watched import beat
from suite.record.text import lines as printable_lines
from suite.record.text import printable

GROUPS = CHOOSE, MEASURE, GUARD, MORE = "Choose a technique", "Measure", "Guard and add", "More"
"""The groups of commands, in the order of --help: ten commands in three groups, and the others."""

RENAMED_COMMANDS: dict[str, Callable[[list[str]], str]] = {
    "show": lambda rest: " ".join(["show is list now: leantrain list", *rest]),
    "export": lambda rest: (
        "export is leaderboard now: leantrain leaderboard --write board.csv (or board.parquet; or --format model-index "
        "for a model card)"
    ),
}
RENAMED_OPTIONS = {
    "--out": ("--results", ""),
    "--html": ("--write", ", once for each file: --write board.md --write board.html"),
    "--plot": ("--write", ": --write FILE.svg"),
}
"""Old name -> the new one and how to use it."""


ENDING = (signal.SIGTERM, signal.SIGHUP)


class Exit(IntEnum):
    """Says how a command ended, by its exit code."""

    FINE = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNFIT = 4
    RUN_FAILED = 5
    NOTHING = 6
    INTERRUPTED = 130  # as shells say of Ctrl-C


TRAINING = ("torch", "torchvision", "timm", "transformers")
"""What reading and judging records, and anyone's logs, do without."""


class Commands(TyperGroup):
    """Answers a malformed call in JSON where it asks for that, and an old name with the new one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Lists the commands by group, as --help shows them."""
        panels = {name: getattr(command, "rich_help_panel", GROUPS[-1]) for name, command in self.commands.items()}
        return sorted(super().list_commands(ctx), key=lambda name: GROUPS.index(panels[name]))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in RENAMED_COMMANDS:
            rest = [argument for argument in args[1:] if argument != "--json"]
            fail(RENAMED_COMMANDS[args[0]](rest), Exit.USAGE, ctx.meta["as_json"])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name in TRAINING:
                fail(f"what loads a model needs {error.name}: pip install leantrain", Exit.UNFIT, ctx.meta["as_json"])
            if sentence := _renamed_option(error):
                fail(sentence, Exit.USAGE, ctx.meta["as_json"])
            if ctx.meta["as_json"] and hasattr(error, "format_message"):  # the parser's: it has no public name
                print(json.dumps({"error": error.format_message(), "exit_code": int(Exit.USAGE)}))
            raise


def _renamed_option(error: Exception) -> str:
    """Tells what to say of an option that the command had under another name; nothing of any other error."""
    old, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if old not in RENAMED_OPTIONS or context is None:
        return ""
    new, how = RENAMED_OPTIONS[old]
    known = {name for parameter in context.command.params for name in parameter.opts}
    return f"{old} is {new} now{how}" if new in known else ""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # rich's own markup would swallow [defaults] in brackets
    help="Which published ways to train a Transformer faster, smaller, cheaper really help: measured, with intervals.",
)
out = Console(
    width=None if sys.stdout.isatty() else 200, soft_wrap=not sys.stdout.isatty(), highlight=False, emoji=False
)
err = Console(stderr=True, soft_wrap=not sys.stderr.isatty(), highlight=False, emoji=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"leantrain {version('leantrain')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def fail(message: str, code: int, as_json: bool = False) -> NoReturn:
    """Prints one clear sentence on standard error, and ends with the exit code that says what kind of trouble it is."""
    if as_json:
        print(json.dumps({"error": message, "exit_code": int(code)}))
    err.print(f"[red]leantrain:[/red] {escape(message)}")
    raise typer.Exit(int(code))


PLAIN_BRACKET = re.compile(r"\\(?=\[(?![a-z#/@][^[]*?]))")  # of no tag: rich drops the backslash before it


def escape(text: str) -> str:
    """Returns ``text`` as rich prints it, brackets and all, without what would command a terminal."""
    return markup.escape(PLAIN_BRACKET.sub(r"\\\\", printable_lines(text)))


@contextmanager
def understandable(as_json: bool = False) -> Iterator[None]:
    """Turns the errors that a user can mend into one sentence and an exit code."""
    from suite.entries.catalogue import UnknownId
    from suite.loop.sites import NotAttached
    from suite.loop.technique import Unavailable
    from suite.record.store import NoRecord, StoreError

    try:
        yield
    except (UnknownId, NoRecord, ValueError) as error:  # ValueError: of a bad stack, card, model, option, too
        fail(str(error), Exit.USAGE, as_json)
    except Unavailable as error:
        fail(str(error), Exit.UNFIT, as_json)
    except (StoreError, NotAttached) as error:
        fail(str(error), Exit.RUN_FAILED, as_json)
    except OSError as error:  # what it was to read or write; a traceback's exit code of 1 would say "regressed"
        why = f"{error.filename}: {error.strerror}; name another place" if error.filename else str(error)
        fail(_no_room() if error.errno in (errno.ENOSPC, errno.EDQUOT) else why, Exit.USAGE, as_json)
    except RuntimeError as error:
        from suite.process.child import ContenderFailed  # loads torch: only where something has run

        if not isinstance(error, ContenderFailed):
            raise
        fail(str(error), Exit.RUN_FAILED, as_json)
    except KeyboardInterrupt as interrupt:
        code = 128 + interrupt.signal if isinstance(interrupt, CommandEnded) else Exit.INTERRUPTED
        fail("interrupted; what was measured is kept, the same command continues", code, as_json)
    except SystemExit as error:  # the commands end by typer.Exit, so this is of code that was loaded
        fail(f"a technique that was loaded called sys.exit({error.code})", Exit.RUN_FAILED, as_json)


class CommandEnded(KeyboardInterrupt):
    """Is raised where the command was sent ``signal``, and ends as by Ctrl-C: what it began is put away."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def end_by_signals() -> None:
    """Has SIGTERM and SIGHUP end the command as Ctrl-C does. What was set to be ignored (nohup) stays so."""

    def end(number: int, frame: object) -> None:
        for signal_number in ENDING:  # once: what is being put away is not left half done
            signal.signal(signal_number, signal.SIG_IGN)
        raise CommandEnded(number)

    for signal_number in ENDING:
        if signal.getsignal(signal_number) == signal.SIG_DFL:
            signal.signal(signal_number, end)


def _no_room() -> str:
    from suite.record.files import cache_folder

    return (
        f"the disk is full: free some room, in the cache {cache_folder()} for one (all of it can be made again), or "
        "set LEANTRAIN_CACHE to a folder on another disk"
    )


GAP = 2  # blanks between two columns
LEAST = 10  # characters that a text needs beside others to be read


def show_table(
    head: Sequence[str],
    lines: Iterable[Sequence[str]],
    *,
    title: str = "",
    whole: Collection[int] = (0,),
    right: Collection[int] = (),
) -> None:
    """Prints a table: tab-separated lines where it is piped; on a terminal columns that fit it.

    The columns ``whole``, ids and names, are never cut or broken. Where they leave no room for the others, each line of
    the table becomes a paragraph.
    """
    cells = [[printable(cell) for cell in line] for line in lines]
    if not out.is_terminal:
        for text in ([title] if title else []) + ["\t".join(line) for line in (head, *cells)]:
            print(text)
        return
    widths = [max(map(cell_len, column)) for column in zip(head, *cells)]
    room = out.width - GAP * (len(head) - 1) - sum(widths[place] for place in whole)
    if room < sum(min(width, LEAST) for place, width in enumerate(widths) if place not in whole):
        return _show_paragraphs(head, cells, title, whole)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for place, (name, width) in enumerate(zip(head, widths)):
        fixed = place in whole
        table.add_column(
            escape(name),
            no_wrap=fixed,
            min_width=width if fixed else None,
            overflow="fold",
            justify="right" if place in right else "left",
        )
    for line in cells:
        table.add_row(*map(escape, line))
    out.print(table)


def _show_paragraphs(head: Sequence[str], cells: Iterable[Sequence[str]], title: str, whole: Collection[int]) -> None:
    if title:
        out.print(f"[italic]{escape(title)}[/italic]")
    for line in cells:
        out.print("[bold]" + escape("  ".join(line[place] for place in sorted(whole))) + "[/bold]", overflow="fold")
        for place, (name, cell) in enumerate(zip(head, line)):
            if cell and place not in whole:
                out.print(Padding(escape(f"{name}: {cell}" if name else cell), (0, 0, 0, 2)))


def many(count: int, noun: str) -> str:
    """Returns ``3 rows``, ``1 row``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def warn(text: str) -> None:
    """Prints a sentence on standard error; the command goes on."""
    err.print(f"[yellow]{escape(text)}[/yellow]")


@contextmanager
def bar(quiet: bool) -> Iterator[Any]:
    """Shows a progress bar on a terminal, a line per change of label elsewhere, nothing when quiet; never backwards."""
    with _bar(quiet) as shown:

        def reported(share: float, label: str) -> None:
            beat(label)
            shown(share, label)

        yield reported


@contextmanager
def _bar(quiet: bool) -> Iterator[Any]:
    if quiet:
        yield lambda share, label: None
    elif err.is_terminal:
        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.description}"), console=err, transient=True) as progress:
            task = progress.add_task("", total=1.0)
            farthest = [0.0]

            def move(share: float, label: str) -> None:
                farthest[0] = max(farthest[0], share)
                progress.update(task, completed=farthest[0], description=escape(label))

            yield move
    else:
        last: tuple[float, str] = (0.0, "")

        def line(share: float, label: str) -> None:
            nonlocal last
            farthest, what = max(last[0], share), label.split(" (")[0]
            if what != last[1]:
                err.print(f"{100 * farthest:3.0f} % {escape(what)}")
            last = farthest, what

        yield line
