"""Records that somebody forged, each with one value that no run has, under a checksum that is right: every one is named
or shown, and no view of the sound records beside them fails."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from suite.judge.rows import as_dict
from suite.record.seal import sealed
from suite.record.store import Store
from suite.topics.board import markdown
from suite.topics.board.report import Report
from suite.topics.history.change_points import series
from suite.topics.publish import export
from tests import factories
from tests.torture import Row, Scale, row

AT_ONCE = 200
WORDS = "b" * 3000
VALUES: Sequence[Any] = (
    None,
    True,
    -1,
    0,
    1,
    10**12,
    2**62,
    2**63,
    10**30,
    -1e308,
    1e308,
    1e-320,
    "NaN",
    "Infinity",
    "-Infinity",
    "",
    WORDS,
    "x+",
    "http:evil",
    "../../x",
    [],
    [None],
    {},
    {"a": {"b": [1]}},
    [[1]],
    "2026-13-01",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+00:00",
)


def attack(scale: Scale) -> Iterator[Row]:
    coin, outcomes = random.Random(0), Counter[str]()
    for _ in range(scale.trials(20)):
        outcomes += shown_beside([forged(number, coin) for number in range(AT_ONCE)])
    yield row("a forged record beside sound ones, read, judged and shown", outcomes)


def forged(number: int, coin: random.Random) -> tuple[str, bytes]:
    """The path of a value in a record, and the record with another one there."""
    kinds = (factories.learned("x"), factories.counted("x"), factories.timings("x", 1)[0], factories.renewal("x"))
    content = json.loads(coin.choice(kinds).model_dump_json()) | {
        "id": f"forged {number}",
        "started": "2027-01-01T00:00:00+00:00",
    }
    path = coin.choice([each for each in paths(content) if each and each not in (("kind",), ("id",))])
    changed: Any = content
    for each in path[:-1]:
        changed = changed[each]
    changed[path[-1]] = coin.choice(VALUES)
    return ".".join(map(str, path)), sealed(json.dumps(content, separators=(",", ":")).encode())


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all values in it; of lists those of the first two members."""
    yield above
    members = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, inner in members:
        yield from paths(inner, (*above, name))


def shown_beside(lines: Sequence[tuple[str, bytes]]) -> Counter[str]:
    """What became of each line, in words."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        for each in factories.evidence("x"):
            store.append(each, "sound")
        path = store.path("other", "forged")
        path.parent.mkdir()
        path.write_bytes(b"".join(line + b"\n" for _, line in lines))
        records, problems = store.read()
        named = sum(str(path) in each for each in problems)
        named += sum(int(count) for each in problems for count in re.findall(r"nor can (\d+) more", each))
        read = sum(each.id.startswith("forged") for each in records.lines)
        if named + read != len(lines):
            return Counter({"a line that is neither shown nor named": len(lines) - named - read})
        try:
            report = Report.read(Path(folder))
            markdown.render(report)
            for name in export.TABLES:
                export.exported(report.rows, "csv", name)
            json.dumps([as_dict(each) for each in report.rows], allow_nan=False)
            series(records)
        except Exception as error:
            return Counter({f"{type(error).__name__} beside {', '.join(sorted({name for name, _ in lines}))[:300]}": 1})
        if "x" not in {each.stack for each in report.rows}:
            return Counter({"the sound records are gone": len(lines)})
        return Counter(held=len(lines))
