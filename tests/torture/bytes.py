"""One byte of a record becomes another one: the line is named and left out, and the records around it are there."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from suite.record.store import Store
from tests.torture import Row, Scale, row

RESULTS = Path(__file__).parents[2] / "results"


def attack(scale: Scale) -> Iterator[Row]:
    coin, outcomes = random.Random(0), Counter[str]()
    committed = sorted(RESULTS.glob("*/*.jsonl"))
    for _ in range(scale.trials(1000)):
        lines = [each for each in coin.choice(committed).read_bytes().split(b"\n") if each]
        outcomes[changed(coin.sample(lines, 3), coin)] += 1
    yield row("one byte of a committed record, or the end of its line, becomes another one", outcomes)


def changed(lines: list[bytes], coin: random.Random) -> str:
    """What became of three lines of which the middle one had a byte changed."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        path = store.path("m", "all")
        path.parent.mkdir()
        content = bytearray(b"\n".join([*lines, b""]))
        path.write_bytes(content)
        if (whole := len(store.read()[0].lines)) != 3:
            return f"only {whole} of 3 records could be read before"
        place = len(lines[0]) + 1 + coin.randrange(len(lines[1]) + 1)
        content[place] = (content[place] + coin.randrange(1, 256)) % 256
        path.write_bytes(content)
        records, problems = store.read()
        left = len(records.lines)
        if not problems:
            return "a change that nobody named"
        if left != (
            2 if place < len(lines[0]) + 1 + len(lines[1]) else 1
        ):  # without its end it is one line with the next
            return f"{left} records left"
        return "held" if path.read_bytes() == bytes(content) else "the file was changed"
