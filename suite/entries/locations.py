"""What a user names with --data and --model is looked through before a library reads it: it names no file elsewhere,
and no code.

A table of images may give a path in the place of an image's bytes (``datasets``' Image feature), and whatever lies
there would be read: of somebody else's data set that is a file of this machine. Pipes and devices have no end. A
model's configuration may ask for a kernel, which transformers fetches from the hub and runs, ``trust_remote_code`` or
not.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from suite.record.text import printable

TABLES = frozenset({".parquet", ".arrow"})
OBJECTS = frozenset({".json", ".jsonl", ".ndjson"})
IMPLEMENTATIONS = frozenset({"eager", "sdpa", "grouped_mm", "batched_mm"})  # PyTorch's own; all others may fetch code
HUB_ID = re.compile(r"(?P<id>[\w-][\w.-]*(/[\w.-]+)?)(:(?P<name>[\w.-]+))?(@(?P<revision>[\w./-]+))?")

Named = tuple[Any, Any]
"""The path of an image, and something that is true where its bytes are there, too."""


class Outside(ValueError):
    """A location that reads or runs what the user did not name; the message says what."""


# data ---------------------------------------------------------------------------------------------------------------


@cache  # a command asks several times
def check_data(location: str, of_images: bool) -> None:
    """Raises Outside for data that would read a file which does not lie in it, or what is no regular file; and
    FileNotFoundError for a file that is not there, before the hub is asked for one of its name.

    What is no data is for the reader to say.
    """
    path = Path(location).expanduser()
    if not path.exists():
        match = HUB_ID.fullmatch(location)
        if match is None or _names_a_file(Path(match["id"])):
            near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1)
            hint = f"did you mean {path.with_name(near[0])}?" if near else "a data set of the hub is OWNER/NAME"
            raise FileNotFoundError(f"--data {location}: no such file or folder; {hint}")
        if of_images:
            _check_images(location, _of_hub(match), path)
        return
    if path.is_file():
        files, folder = [path], path.parent
    elif path.is_dir():
        files, folder = sorted(each for each in path.rglob("*") if not each.is_dir()), path
    else:
        raise Outside(f"--data {location}: it is a pipe or a device; give a file or a folder")
    for each in files:
        if not each.is_file():
            raise Outside(f"--data {location}: {printable(each.name)} is no regular file; take it away")
        if path.is_dir() and not _inside(each, folder):
            raise Outside(f"--data {location}: {printable(each.name)} is a link to a file elsewhere; copy that here")
        if of_images:
            _check_images(location, _images_of(each), folder)


def _names_a_file(path: Path) -> bool:
    """Whether it is a file's name and no data set's of the hub: in a folder that is here, or with a suffix."""
    return path.parent.is_dir() if path.parent != Path() else bool(path.suffix)


def _names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []


def _inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _check_images(location: str, images: Iterable[Named], folder: Path) -> None:
    for name, content in images:
        if content or not name:
            continue
        if not isinstance(name, str) or not Path(name).is_file() or not _inside(Path(name), folder):
            raise Outside(
                f"--data {location}: an image in it has no bytes, but the path {printable(str(name)[:200])}, which is "
                "no file of this data; store the images themselves"
            )


def _images_of(file: Path) -> Iterator[Named]:
    """Nothing of a file that cannot be read, which the reader will say."""
    if file.suffix.lower() in OBJECTS:
        return _of_objects(file)
    return _of_tables(file) if file.suffix.lower() in TABLES else iter(())


def _of_objects(file: Path) -> Iterator[Named]:
    """Images of JSON, whole or a line each: every object that has the members of an image, however deep, as often as
    they stand in it."""
    named: list[Named] = []

    def collect(members: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(members)
        if known.keys() <= {"path", "bytes"}:
            named.extend((value, known.get("bytes")) for name, value in members if name == "path")
        return known

    text = file.read_text("utf-8", "replace")
    try:
        json.loads(text, object_pairs_hook=collect)
    except (ValueError, RecursionError):
        for line in text.splitlines():
            try:
                json.loads(line, object_pairs_hook=collect)
            except (ValueError, RecursionError):
                continue
    return iter(named)


def _of_tables(file: Path) -> Iterator[Named]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:  # then there is no reader either
        return
    try:
        if file.suffix.lower() == ".parquet":
            with pq.ParquetFile(file) as parquet:
                columns = _columns_of_images(parquet.schema_arrow)
                for batch in parquet.iter_batches(columns=columns) if columns else ():
                    yield from _of_batch(batch, columns)
        else:
            for kind in (pa.ipc.open_stream, pa.ipc.open_file):
                try:
                    with pa.memory_map(str(file)) as source, kind(source) as reader:
                        table = reader.read_all()
                        break
                except pa.ArrowInvalid:
                    continue
            else:
                return
            for batch in table.to_batches():
                yield from _of_batch(batch, _columns_of_images(table.schema))
    except (pa.ArrowException, OSError):
        return


def _columns_of_images(schema: Any) -> list[str]:
    """The columns that are a path and bytes, and those that ``datasets`` is told to take for images."""
    import pyarrow as pa

    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, LookupError, TypeError):
        told = {}
    declared = {name for name, feature in told.items() if isinstance(feature, dict) and feature.get("_type") == "Image"}
    return [
        field.name for field in schema
        if field.name in declared
        or (pa.types.is_struct(field.type) and {each.name for each in field.type} == {"path", "bytes"})
    ]  # fmt: skip


def _of_batch(batch: Any, columns: Iterable[str]) -> Iterator[Named]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in columns:
        column = batch.column(name)
        if pa.types.is_struct(column.type):
            paths, content = column.field("path").to_pylist(), column.field("bytes")
            is_content = pa.types.is_binary(content.type) or pa.types.is_large_binary(content.type)
            yield from zip(paths, pc.binary_length(content).to_pylist() if is_content else [None] * len(paths))
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            yield from ((each, None) for each in column.to_pylist())


def _of_hub(match: re.Match[str]) -> Iterator[Named]:
    """Images of a data set that is in ``datasets``' cache afterwards."""
    try:
        import datasets

        loaded = datasets.load_dataset(match["id"], match["name"], revision=match["revision"])
    except Exception:  # whatever it is, the reader meets it next and says it
        return
    for split in loaded.values():
        columns = _columns_of_images(split.data.schema)
        for batch in split.data.table.to_batches():
            yield from _of_batch(batch, columns)


# models -------------------------------------------------------------------------------------------------------------


def check_configuration(folder: str) -> None:
    """Raises Outside for a configuration that names another implementation of attention or experts than PyTorch's.

    What is not there, or is no configuration, is for the reader to say.
    """
    try:
        content = json.loads((Path(folder).expanduser() / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    for name, value in _implementations(content):
        raise Outside(
            f"--model {folder}: its {printable(name)} is {printable(str(value)[:200])}, which may be code from the "
            "hub; take that line out of config.json: leantrain chooses the attention by the recipe"
        )


def _implementations(content: Any) -> Iterator[tuple[str, Any]]:
    """The implementations that are not PyTorch's own, however deep."""
    if isinstance(content, list):
        for each in content:
            yield from _implementations(each)
    for name, value in content.items() if isinstance(content, dict) else ():
        if re.search(r"implementation(_internal)?$", name):
            chosen = value.values() if isinstance(value, dict) else [value]
            yield from ((name, each) for each in chosen if each is not None and each not in IMPLEMENTATIONS)
        else:
            yield from _implementations(value)
