"""Parquet files of a user's, cut, changed in a byte, or of another make: each is read, or refused in a sentence;
none is waited for, ends the process, or reads a file elsewhere."""

from __future__ import annotations

import gzip
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from suite.entries.setting import setting_of
from suite.measure.campaign import UNREADABLE, load_data
from suite.process.child import ContenderFailed
from tests.torture import Row, Scale, row

ROWS = [f"Row {number} of a text that is long enough for a byte of it to be another one. " * 4 for number in range(400)]
MINUTES = 2.0


def attack(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEANTRAIN_CACHE"], before = str(Path(folder, "cache")), os.environ.get("LEANTRAIN_CACHE")
        coin = random.Random(0)
        try:
            odd = Counter(read(Path(folder, name), make, coin) for name, make in ODD.items())
            bytes_changed = Counter(read(Path(folder, str(n)), flipped, coin) for n in range(scale.trials(50)))
        finally:
            del os.environ["LEANTRAIN_CACHE"]
            if before is not None:
                os.environ["LEANTRAIN_CACHE"] = before
    yield row("an odd Parquet file as data", odd, FINE)
    yield row("a Parquet file with a byte that is another one", bytes_changed, FINE)


FINE = ("read", "refused")


def read(folder: Path, make: Callable[[Path, random.Random], object], coin: random.Random) -> str:
    """What becomes of a folder with such a file, in words."""
    folder.mkdir()
    make(folder / "data.parquet", coin)
    try:
        load_data(setting_of(baseline="gpt", size="pico", data=str(folder)), MINUTES)
    except (*UNREADABLE, OSError) as refusal:
        return "refused" if str(refusal).strip() else "refused without a word"
    except ContenderFailed as failure:
        return "refused" if failure.status == "failed" else f"{failure.status}: {failure}"
    return "read"


def written(path: Path, table: pa.Table, **options: object) -> bytes:
    pq.write_table(table, path, **options)
    return path.read_bytes()


def texts(path: Path) -> bytes:
    return written(path, pa.table({"text": ROWS}))


def flipped(path: Path, coin: random.Random) -> None:
    content = bytearray(texts(path))
    content[coin.randrange(len(content))] ^= 1 << coin.randrange(8)
    path.write_bytes(content)


def pipe(path: Path, _: random.Random) -> None:
    os.mkfifo(path)


ODD: dict[str, Callable[[Path, random.Random], object]] = {
    "cut in half": lambda path, _: path.write_bytes(texts(path)[: path.stat().st_size // 2]),
    "without its end": lambda path, _: path.write_bytes(texts(path)[:-8]),
    "empty": lambda path, _: path.write_bytes(b""),
    "its magic alone": lambda path, _: path.write_bytes(b"PAR1PAR1"),
    "a footer of 2 GiB": lambda path, _: path.write_bytes(texts(path)[:-8] + b"\xff\xff\xff\x7fPAR1"),
    "compressed": lambda path, _: path.write_bytes(gzip.compress(texts(path))),
    "of bytes that are no text": lambda path, _: written(path, pa.table({"text": [b"\xff\xfe" * 400] * 40})),
    "of numbers": lambda path, _: written(path, pa.table({"text": list(range(400))})),
    "without rows": lambda path, _: written(path, pa.table({"text": pa.array([], pa.string())})),
    "without columns": lambda path, _: written(path, pa.table({})),
    "of nothing": lambda path, _: written(path, pa.table({"text": pa.nulls(400, pa.string())})),
    "of a thousand columns": lambda path, _: written(path, pa.table({f"c{n}": ["x"] for n in range(1000)})),
    "64 MB in a small file": lambda path, _: written(path, pa.table({"text": ["a" * (64 << 20)]}), compression="zstd"),
    "a pipe": pipe,
    "a device": lambda path, _: path.symlink_to("/dev/zero"),
    "a link elsewhere": lambda path, _: path.symlink_to("/etc/hostname"),
    "a folder": lambda path, _: path.mkdir(),
}
