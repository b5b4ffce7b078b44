"""Takes in other people's records: read from what they published or from a copy of their results folder, and added to
ours.

What is added stays what it was: machine, code and id are in every line, and ``source`` says whose collection it came
from. All that is good of one merge is added in one step or not at all; what is there already is never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.record.files import open_plain, replacing
from suite.record.schema import Line, unattached
from suite.record.seal import sealed
from suite.record.store import MERGED, Store, and_others, lines_of, parse_sealed, same
from suite.record.text import printable
from suite.topics.publish.signing import Signed

RECORD = "record"
"""The column of a published table that has the whole record, as JSON."""
PATTERNS = ("*.parquet", "*/*.parquet", "*.jsonl", "*/*.jsonl")


@dataclass(frozen=True)
class Merged:
    """Says what became of the lines: ``added``; ``known`` is how many were here, ``left_out`` how many were refused;
    ``refused`` has a sentence for each file and reason."""

    added: Sequence[Line]
    known: int
    refused: Sequence[str]
    left_out: int


def merge(paths: Sequence[Path], folder: Path, verify: Callable[[Path], Signed] | None = None) -> Merged:
    """Adds the records of published collections, results folders or single files to the results ``folder``.

    A line is refused that is damaged, of another schema, no evidence, or other than the one here with its id. With
    ``verify``, which says what is signed of a path, so are files of other bytes, with all else, and lines of others.

    Raises ValueError for a path that has no records or is not signed so, StoreError if the folder cannot be written or
    a run holds it.
    """
    files = [(*file, signed) for path in paths for signed, file in _signed_files(path, folder, verify)]
    store = Store(folder)
    with store.writing(MERGED):
        here = {line.id: line for line in store.read()[0].lines}
        added: dict[str, Line] = {}
        known, refused = 0, dict[tuple[Path, str], list[int]]()
        for file, name, signed in files:
            for place, text, source in _texts(file):
                try:
                    line = _line(text, source or name)
                    if signed and line.source != signed.source:
                        raise ValueError(f"{signed.identity} signs what it ran, not what {printable(line.source)} did")
                    old = here.get(line.id) or added.get(line.id)
                    if old and not same(old, line):
                        raise ValueError(f"it has the id of another one here, {printable(line.id)}")
                except ValueError as error:
                    refused.setdefault((file, str(error)), []).append(place)
                    continue
                known += old is not None
                added |= {} if old else {line.id: line}
        if added:
            _append(store.merged, list(added.values()))
    sentences = [
        f"{printable(str(file))}:{places[0]}: {why}; it is left out{and_others(places)}"
        for (file, why), places in refused.items()
    ]
    return Merged(list(added.values()), known, sentences, sum(map(len, refused.values())))


def _signed_files(
    path: Path, folder: Path, verify: Callable[[Path], Signed] | None
) -> Iterator[tuple[Signed | None, tuple[Path, str]]]:
    """Yields each file at a path with what is signed of it, where that is asked for."""
    files = files_of(path, folder)
    if verify and not path.is_dir():
        raise ValueError(f"{path}: what is signed is a publication as a whole; name its folder")
    signed = verify(path) if verify else None
    for file, name in files:
        if signed:
            signed.require(file)
        yield signed, (file, name)


def files_of(path: Path, folder: Path) -> list[tuple[Path, str]]:
    """Finds the files of records at a path, each with what its source is called where its lines do not say it."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder; name what somebody published, or a copy of results")
    if path.resolve() == folder.resolve():
        raise ValueError(f"{path} is the results folder itself; name another one with --results")
    if path.is_dir():
        files = sorted({file for pattern in PATTERNS for file in path.glob(pattern) if file.is_file()})
        if not files:
            raise ValueError(f"{path} holds no records: no .parquet and no .jsonl in it or in its folders")
        return [(file, path.resolve().name) for file in files]
    if path.suffix not in (".parquet", ".jsonl") or not path.is_file():
        raise ValueError(f"{path}: records come as .parquet (leantrain publish) or .jsonl (a results folder)")
    return [(path, path.stem)]


def _texts(file: Path) -> Iterator[tuple[int, bytes, str]]:
    """Yields each record of a file, with its place from 1 on and its source, empty where the file does not say it.

    Raises ValueError, OSError for a file that cannot be read at all.
    """
    if file.suffix == ".jsonl":
        for number, text in lines_of(file):
            yield number, text, ""
        return
    for number, row in enumerate(read_parquet(file), 1):
        yield number, (row[RECORD] or "").encode(), row.get("source") or ""


def read_parquet(file: Path) -> Iterator[dict[str, str | None]]:
    """Yields the record and the source of each row of a published table. Raises ValueError where it is none."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'leantrain[parquet]'") from None
    try:
        with pq.ParquetFile(file) as table:
            fields = {field.name: field.type for field in table.schema_arrow}
            if fields.get(RECORD) != pa.string():
                raise ValueError(f"{file}: it has no text column {RECORD!r}, so leantrain did not publish it")
            columns = [name for name in (RECORD, "source") if fields.get(name) == pa.string()]
            for batch in table.iter_batches(batch_size=1000, columns=columns):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        first = printable(str(error).splitlines()[0])
        raise ValueError(f"{file}: it is damaged ({first}); fetch it again") from None


def _line(text: bytes, source: str) -> Line:
    """Reads the record, with where it came from. Raises ValueError for one that is none, or no evidence."""
    line = parse_sealed(text.strip())
    if unattached(line):
        raise ValueError("a technique in it did not attach, so it is no evidence")
    return line if line.source else line.model_copy(update={"source": source[:200] or MERGED})


def _append(path: Path, lines: Sequence[Line]) -> None:
    """Adds lines to a file, all or none: another file takes its place when all are on the disk."""
    with replacing(path) as partial, partial.open("wb") as file:
        end = b"\n"
        if path.exists():
            with open_plain(path) as old:
                while piece := old.read(1 << 20):
                    file.write(piece)
                    end = piece[-1:]
        file.write(b"" if end == b"\n" else b"\n")
        for line in lines:
            file.write(sealed(line.model_dump_json().encode()) + b"\n")
        file.flush()
        os.fsync(file.fileno())
