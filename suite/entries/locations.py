"""What a user names with --data and --model is looked through before a library reads it: it names no file elsewhere,
and no code.

A table of images may give a path in the place of an image's bytes (``datasets``' Image feature), and whatever lies
there would be read: of somebody else's data set that is a file of this machine. Readers unpack what looks like an
archive, whatever its name is, and a saved data set names its files; so each file must be what it is called, and the
table that is looked through is the one that is loaded. Pipes and devices have no end. A model's configuration may ask
for a kernel, which transformers fetches from the hub and runs, ``trust_remote_code`` or not.
"""

from __future__ import annotations

import codecs
import difflib
import json
import os
import re
import socket
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from suite.record.files import open_plain, read_plain_text
from suite.record.text import printable

IMAGES, SAVED = "imagefolder", "saved"
KINDS: Mapping[str, frozenset[str]] = {
    "parquet": frozenset({".parquet"}),
    "arrow": frozenset({".arrow"}),
    IMAGES: frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}),
    "json": frozenset({".jsonl", ".json", ".ndjson"}),
    "csv": frozenset({".csv"}),
    "text": frozenset({".txt"}),
}
"""The suffixes that the reader takes, the kinds in its order: of several in a folder the first is the data."""
STATE, SPLITS = "state.json", "dataset_dict.json"
HEAD_BYTES = 4096
REACHED_WITHIN_S = 1.0
ARCHIVES = (
    b"\x1f\x8b",
    b"\xfd7zXZ\x00",
    b"Rar!",
    b"\x28\xb5\x2f\xfd",
    b"BZh",
    b"7z\xbc\xaf\x27\x1c",
    b"\x04\x22\x4d\x18",
)
"""The beginnings by which ``datasets`` knows what to unpack, besides those of zip and tar."""
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*", b"GIF8", *(b"P%d" % index for index in range(1, 7)))
PATTERN = re.compile(r"[*?\[\]]|::")
PLAIN_NAME = re.compile(r"[\w-][\w. -]*")
SPACE = re.compile(r"[ \t\r\n]*")
IMPLEMENTATIONS = frozenset({"eager", "sdpa", "grouped_mm", "batched_mm"})  # PyTorch's own; all others may fetch code
HUB_ID = re.compile(r"(?P<id>[\w-][\w.-]*(/[\w.-]+)?)(:(?P<name>[\w.-]+))?(@(?P<revision>[\w./-]+))?")

Named = tuple[Any, Any]
"""The path of an image, and something that is true where its bytes are there, too."""


class Outside(ValueError):
    """Is raised for a location that reads or runs what the user did not name; the message says what."""


# data ---------------------------------------------------------------------------------------------------------------


@cache  # a command asks several times
def check_data(location: str, of_images: bool) -> None:
    """Raises Outside for data that would read a file which does not lie in it, or what is no regular file, or a file
    that is not what its name says; and FileNotFoundError for a file that is not there, before the hub is asked for one
    of its name.

    What is no data is for the reader to say.
    """
    path = Path(location).expanduser()
    match = check_named(location)
    if match is not None:
        if of_images:
            _check_images(location, _of_hub(match), path)
        return
    if not path.is_file() and not path.is_dir():
        raise Outside(f"--data {location}: it is a pipe or a device; give a file or a folder")
    for entry in sorted(path.rglob("*")) if path.is_dir() else ():
        if not entry.is_file() and not entry.is_dir():
            raise Outside(f"--data {location}: {printable(entry.name)} is no regular file; take it away")
        if not _inside(entry, path):
            raise Outside(f"--data {location}: {printable(entry.name)} is a link to a file elsewhere; copy that here")
    kind, files = _read_by(path)
    folder = path if path.is_dir() else path.parent
    if kind == SAVED:
        _check_saved(location, path, of_images)
        return
    for file in files:
        _check_content(location, file, kind, path)
        if of_images:
            _check_images(location, _images_of(location, file, kind), folder)


def check_named(location: str) -> re.Match[str] | None:
    """Returns the hub id that a location is where no file or folder is there. Raises FileNotFoundError where it is
    neither."""
    path = Path(location).expanduser()
    if path.exists():
        return None
    match = HUB_ID.fullmatch(location)
    if match is None or _names_a_file(Path(match["id"])):
        near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "a data set of the hub is OWNER/NAME"
        raise FileNotFoundError(f"--data {location}: no such file or folder; {hint}")
    return match


def check_reached(location: str) -> None:
    """Raises FileNotFoundError for what is neither here nor in the cache of data sets while the hub is out of reach:
    its client would try again and again for a minute. What a proxy reaches is the client's to find out."""
    match = check_named(location)
    proxies = [os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")]
    if match is None or any(proxies):
        return
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cached = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")) / match["id"].replace("/", "___")
    if cached.is_dir():
        return
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((endpoint.hostname or "", endpoint.port or 443), timeout=REACHED_WITHIN_S).close()
    except OSError:
        near = difflib.get_close_matches(Path(location).name, _names_in(Path(location).parent), n=1)
        hint = f"; did you mean {Path(location).with_name(near[0])}?" if near else ""
        raise FileNotFoundError(
            f"--data {location}: no such file or folder, and the hub, which may have it, is out of reach{hint}"
        ) from None


def _names_a_file(path: Path) -> bool:
    """Tells whether it is a file's name and no data set's of the hub: in a folder that is here, or with a suffix."""
    return path.parent.is_dir() if path.parent != Path() else bool(path.suffix)


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _read_by(path: Path) -> tuple[str, list[Path]]:
    """Returns the kind of data, and the files that its reader takes; "" of what has none."""
    if path.is_file():
        kinds = (kind for kind, suffixes in KINDS.items() if path.suffix.lower() in suffixes)
        return next(kinds, ""), [path]
    seen = [file for file in sorted(path.rglob("*")) if file.is_file()]
    files = [file for file in seen if not any(part[0] == "." for part in file.relative_to(path).parts)]
    if any((path / name) in files for name in (STATE, SPLITS)):
        return SAVED, []
    for kind, suffixes in KINDS.items():
        if data := [file for file in files if file.suffix.lower() in suffixes]:
            return kind, data
    return "", []


def _check_content(location: str, file: Path, kind: str, path: Path) -> None:
    """Raises Outside for a file that is not what its suffix says: readers unpack whatever looks like an archive, of any
    name, and take a name with a wildcard for a pattern."""
    name = printable(str(file.relative_to(path)) if path.is_dir() else file.name)
    if pattern := PATTERN.search(str(file.resolve())):
        raise Outside(
            f"--data {location}: the path of {name} has {pattern.group()!r} in it, which readers take for a pattern"
        )
    with open_plain(file) as opened:
        first = opened.read(HEAD_BYTES)
        opened.seek(-min(4, opened.seek(0, os.SEEK_END)), os.SEEK_END)
        last = opened.read(4)
    archive = kind != IMAGES and (first.startswith(ARCHIVES) or zipfile.is_zipfile(file) or tarfile.is_tarfile(file))
    what = {
        "parquet": first.startswith(b"PAR1") and last == b"PAR1",
        "arrow": first.startswith((b"ARROW1", b"\xff\xff\xff\xff")),
        IMAGES: _is_image(first),
        "json": not first.strip() or first.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["),
    }.get(kind, b"\0" not in first)
    if kind and (archive or not what):
        raise Outside(
            f"--data {location}: {name} is {'an archive' if archive else 'something else'}, and not the {file.suffix} "
            "that its name says; give the plain file"
        )


def _is_image(first: bytes) -> bool:
    return first.startswith(PICTURES) or (first[:4] == b"RIFF" and first[8:12] == b"WEBP") or first[4:8] == b"ftyp"


def _check_saved(location: str, folder: Path, of_images: bool) -> None:
    """Checks of what ``save_to_disk`` wrote that all files named in it are Arrow files beside the names, and of images
    the table that they make."""
    splits = _object(location, folder / SPLITS).get("splits") if (folder / SPLITS).exists() else ["."]
    for split in splits if isinstance(splits, list) else [None]:
        if not isinstance(split, str) or (split != "." and not PLAIN_NAME.fullmatch(split)):
            raise Outside(
                f"--data {location}: {SPLITS} names {printable(str(split)[:200])}, which is no folder beside it"
            )
        files = _object(location, folder / split / STATE).get("_data_files")
        names = [file.get("filename") if isinstance(file, dict) else None for file in files or ()]
        for name in names if isinstance(files, list) else [None]:
            if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name) or not name.endswith(".arrow"):
                raise Outside(
                    f"--data {location}: {STATE} names {printable(str(name)[:200])}, which is no Arrow file beside it"
                )
            if not (folder / split / name).is_file():
                raise Outside(f"--data {location}: {STATE} names {printable(name)}, which is not there")
            _check_content(location, folder / split / name, "arrow", folder)
    if of_images:
        _check_images(location, _of_saved(folder), folder)


def _object(location: str, file: Path) -> dict[str, Any]:
    """Returns the members of a JSON object. Raises Outside where it is none."""
    try:
        content = json.loads(read_plain_text(file))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Outside(f"--data {location}: {file.name} is missing or damaged; save the data set again (save_to_disk)")
    return content


def _check_images(location: str, images: Iterable[Named], folder: Path) -> None:
    for name, content in images:
        if content or not name:
            continue
        if not isinstance(name, str) or not Path(name).is_file() or not _inside(Path(name), folder):
            raise Outside(
                f"--data {location}: an image in it has no bytes, but the path {printable(str(name)[:200])}, which is "
                "no file of this data; store the images themselves"
            )


def _images_of(location: str, file: Path, kind: str) -> Iterator[Named]:
    """Yields the images of a file, and nothing of one that cannot be read, which the reader will say."""
    if kind == "json":
        return _of_objects(location, file)
    return _of_tables(file) if kind in ("parquet", "arrow") else iter(())


def _of_objects(location: str, file: Path) -> Iterator[Named]:
    """Yields the images of JSON, one value after the other with space between: every object that has the members of an
    image, however deep, as often as they stand in it. Raises Outside for what is anything else: readers make of that
    what they like.
    """
    named: list[Named] = []

    def collect(members: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(members)
        if known.keys() <= {"path", "bytes"}:
            named.extend((value, known.get("bytes")) for name, value in members if name == "path")
        return known

    decoder = json.JSONDecoder(object_pairs_hook=collect)
    try:
        with open_plain(file) as opened:
            text = opened.read().decode("utf-8-sig")
        place = SPACE.match(text).end()  # type: ignore[union-attr]
        while place < len(text):
            _, place = decoder.raw_decode(text, place)
            place = SPACE.match(text, place).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError, OSError):
        raise Outside(f"--data {location}: {printable(file.name)} is no JSON, or no JSON Lines, in UTF-8") from None
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
    """Returns the columns that are a path and bytes, and those that ``datasets`` is told to take for images."""
    import pyarrow as pa

    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        features = {}
    declared = features.items() if isinstance(features, dict) else ()
    images = {name for name, feature in declared if isinstance(feature, dict) and feature.get("_type") == "Image"}
    return [
        field.name
        for field in schema
        if field.name in images
        or (pa.types.is_struct(field.type) and {member.name for member in field.type} <= {"path", "bytes"})
    ]


def _of_batch(batch: Any, columns: Iterable[str]) -> Iterator[Named]:
    """Yields the images of these columns of a table; of a column of a type that names no image for sure, its values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in columns:
            continue
        if pa.types.is_struct(column.type):
            members = {member.name for member in column.type}
            paths = column.field("path").to_pylist() if "path" in members else [None] * len(column)
            content = column.field("bytes") if "bytes" in members else None
            is_content = content is not None and (
                pa.types.is_binary(content.type) or pa.types.is_large_binary(content.type)
            )
            yield from zip(paths, pc.binary_length(content).to_pylist() if is_content else [None] * len(paths))
        elif not (
            pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_list(column.type)
        ):
            yield from ((value, None) for value in column.to_pylist())


def _of_hub(match: re.Match[str]) -> Iterator[Named]:
    """Yields the images of a data set that is in ``datasets``' cache afterwards."""
    try:
        import datasets

        loaded = datasets.load_dataset(match["id"], match["name"], revision=match["revision"])
    except Exception:  # whatever it is, the reader meets it next and says it
        return
    yield from _of_loaded(loaded)


def _of_saved(folder: Path) -> Iterator[Named]:
    try:
        import datasets

        loaded = datasets.load_from_disk(str(folder))
    except Exception:  # as with the hub's
        return
    yield from _of_loaded(loaded)


def _of_loaded(loaded: Any) -> Iterator[Named]:
    """Yields the images of a loaded table: of the columns that its reader takes for images, and those that look like
    some."""
    import datasets

    for split in loaded.values() if isinstance(loaded, dict) else [loaded]:
        taken = {name for name, feature in split.features.items() if isinstance(feature, datasets.Image)}
        columns = taken | {*_columns_of_images(split.data.schema)}
        for batch in split.data.table.to_batches():
            yield from _of_batch(batch, columns)


# models -------------------------------------------------------------------------------------------------------------


def check_configuration(folder: str) -> None:
    """Raises Outside for a configuration that names another implementation of attention or experts than PyTorch's, and
    for a folder with anything but files and folders in it.

    What is not there, or is no configuration, is for the reader to say.
    """
    path = Path(folder).expanduser()
    for entry in path.iterdir() if path.is_dir() else ():
        if not entry.is_file() and not entry.is_dir():
            raise Outside(f"--model {folder}: {printable(entry.name)} is no regular file; take it away")
    try:
        content = json.loads(read_plain_text(path / "config.json"))
    except (OSError, ValueError, RecursionError):
        return
    for name, value in _implementations(content):
        raise Outside(
            f"--model {folder}: its {printable(name)} is {printable(str(value)[:200])}, which may be code from the "
            "hub; take that line out of config.json: leantrain chooses the attention by the recipe"
        )


def _implementations(content: Any) -> Iterator[tuple[str, Any]]:
    """Yields the implementations that are not PyTorch's own, however deep."""
    if isinstance(content, list):
        for item in content:
            yield from _implementations(item)
    for name, value in content.items() if isinstance(content, dict) else ():
        if re.search(r"implementation(_internal)?$", name):
            chosen = value.values() if isinstance(value, dict) else [value]
            yield from ((name, choice) for choice in chosen if choice is not None and choice not in IMPLEMENTATIONS)
        else:
            yield from _implementations(value)
