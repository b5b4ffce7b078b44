"""Odd files in a results folder, in the place of each kind of file that it holds: every one is named, none is waited
for, and all that is sound beside them is shown."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from suite.record.store import Store
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from tests import factories
from tests.torture import Row, Scale, row

LIMIT_S = 30
PLACES = {
    "records": "odd/learned.jsonl",
    "another file of records": "odd/anything.jsonl",
    "a study": "odd/studies/odd.json",
    "the matrix of models": "models.json",
    "the counts at the papers' sizes": "paper_scale.json",
    "what the references learned": "references.json",
}


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        before = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            opened.bind(path.name)
        finally:
            os.chdir(before)


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


LINE = factories.learned("x").model_dump_json()
ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a socket": bound,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "bytes that are no text": holding(bytes(range(128, 256)) * 100),
    "zeros": holding(b"\0" * 10_000),
    "text in UTF-16": holding(LINE.encode("utf-16")),
    "a compressed file": holding(gzip.compress(LINE.encode())),
    "a line of 50 MB": holding(b'{"schema_version": 2, "kind": "learned", "reason": "' + b"a" * 50_000_000 + b'"}'),
    "brackets 100,000 deep": holding(b"[" * 100_000),
    "a number of 100,000 digits": holding(b'{"schema_version": ' + b"9" * 100_000 + b"}"),
    "a half of a file": holding(LINE.encode()[:500]),
    "another program's JSON": holding(json.dumps({"name": "x", "version": 2, "schema_version": 2}).encode()),
}


class TooLong(Exception):
    """Something was waited for."""


def attack(scale: Scale) -> Iterator[Row]:
    outcomes = Counter[str]()
    cases = [(place, kind) for place in PLACES for kind in ODD]
    for number in range(scale.trials(len(cases))):
        place, kind = cases[number * len(cases) // scale.trials(len(cases)) % len(cases)]
        outcomes[shown_beside(PLACES[place], kind)] += 1
    yield row("an odd file beside sound records, read and shown", outcomes)


def shown_beside(place: str, kind: str) -> str:
    """What a report of sound records says that has the odd file in this place."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        store = Store(results)
        for each in factories.evidence("x"):
            store.append(each, "sound")
        path = results / place
        path.parent.mkdir(parents=True, exist_ok=True)
        ODD[kind](path)
        try:
            with at_most(LIMIT_S):
                report = Report.read(results)
                html.render(report), markdown.render(report)
        except TooLong:
            return f"{kind} as {place}: waited for"
        except Exception as error:
            return f"{kind} as {place}: {type(error).__name__}"
        said = [each for each in (*report.problems, *report.unreadable) if path.name in each]
        if not said:
            return f"{kind} as {place}: nobody named it"
        if "x" not in {each.stack for each in report.rows}:
            return f"{kind} as {place}: the sound records are gone"
        return "held" if all(len(each) < 2000 for each in said) else f"{kind} as {place}: named at length"


class at_most:
    """Raises TooLong after so many seconds, also where a system call blocks."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def end(number: int, frame: FrameType | None) -> None:
            raise TooLong

        self.start_s = time.monotonic()
        self.before = signal.signal(signal.SIGALRM, end)
        signal.alarm(self.seconds)

    def __exit__(self, *exception: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)
