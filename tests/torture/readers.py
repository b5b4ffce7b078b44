"""Whoever reads a command's output leaves early: the command ends as it would have, without a word about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from suite.record.store import Store
from tests import factories
from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, SHORT, place

COMMANDS = (
    ("list",),
    ("list", "lion"),
    ("list", "--json"),
    ("leaderboard",),
    ("leaderboard", "--json"),
    ("claims",),
    ("history",),
    ("doctor",),
    ("run", "-t", "still", *SHORT),
)


def attack(scale: Scale) -> Iterator[Row]:
    commands = [each for _ in range(scale.trials(3)) for each in COMMANDS]
    yield row("SIGPIPE: nobody reads what a command prints", Counter(map(unread, commands)))


def unread(command: tuple[object, ...]) -> str:
    """One trial, in words."""
    with place({"still": "pass"}) as at:
        for each in factories.evidence("x"):
            Store(at.results).append(each, "sound")
        own = () if command[0] == "list" else ("--results", at.results)
        process = at.begin(*command, *own)
        assert process.stdout
        process.stdout.close()
        told = process.communicate(timeout=LIMIT_S)[1]
        if b"Traceback" in told or b"Broken pipe" in told or b"Exception ignored" in told:
            return f"{command[0]}: {told.splitlines()[-1].decode()}"
        if process.returncode not in (0, 1, 3, 4):
            return f"{command[0]}: exit code {process.returncode}"
        return at.left() or "held"
