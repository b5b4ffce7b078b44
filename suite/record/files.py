"""Handles files of our own: where the cache is, atomic writes, reading of plain files, JSON that names its schema
version."""

from __future__ import annotations

import errno
import glob
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from suite.record.text import printable as printable

YOUNG_S = 60.0
MOST_BYTES = 1 << 28  # of a file that is read whole
_FIELDS: dict[type[BaseModel], set[str]] = {}


class Stored(BaseModel):
    """Serves as base of what is written to a file. A NaN is written as a word, since JSON has no such number."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    def model_post_init(self, context: Any) -> None:
        """Drops which fields were set, since a set of their names for each object takes more memory than most of their
        values: all objects of a class share one. A copy has its own."""
        names = _FIELDS.get(type(self)) or _FIELDS.setdefault(type(self), set(type(self).model_fields))
        object.__setattr__(self, "__pydantic_fields_set__", names)


M = TypeVar("M", bound=Stored)


def cache_folder() -> Path:
    """Returns ``$LEANTRAIN_CACHE``, else ``$XDG_CACHE_HOME/leantrain``, else ``~/.cache/leantrain``."""
    chosen = os.environ.get("LEANTRAIN_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "leantrain").expanduser()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Has a temporary path beside ``path`` that takes its place when the block ends well, and is removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_partials_of_the_dead(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _remove_partials_of_the_dead(path: Path) -> None:
    """Removes what processes that were killed have left beside ``path``. Another machine's, on a shared disk, is young
    while it is written."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        process = partial.name.split(".")[-2]
        with suppress(OSError):
            young = time.time() - partial.stat().st_mtime < YOUNG_S
            if process.isdigit() and not young and not _lives(int(process)):
                partial.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Has a file open, to read from. Raises OSError, also for what is no regular file: a pipe would not end, nor would
    a device."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def read_plain(path: Path) -> bytes:
    """Returns what a file holds. Raises OSError as :func:`open_plain` does, and for what is larger than MOST_BYTES."""
    with open_plain(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB", str(path))
    return content


def read_plain_text(path: Path) -> str:
    """Returns the text of a file in UTF-8. Raises OSError as :func:`read_plain` does, UnicodeDecodeError (a
    ValueError)."""
    return read_plain(path).decode("utf-8")


def json_of(text: str | bytes) -> Any:
    """Returns the content of JSON text. Raises ValueError for what is none, also where it is nested deeper than a
    reader can follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(path: Path) -> dict[str, Any]:
    """Returns a JSON object as it stands in a file. Raises ValueError for what is none, OSError where it cannot be
    read."""
    content = json_of(read_plain_text(path))
    if not isinstance(content, dict):
        raise ValueError(f"it is a {type(content).__name__}")
    return content


def write_json(stored: Stored, path: Path) -> None:
    """Writes ``stored``, whole or not at all. Raises OSError."""
    with replacing(path) as partial:
        partial.write_text(stored.model_dump_json(indent=1) + "\n", "utf-8")


def parse_versioned(content: bytes | str, model: type[M], newest: int, oldest: int = 1) -> M:
    """Returns ``content`` as a ``model`` whose ``schema_version`` is between ``oldest`` and ``newest``.

    Raises ValueError with one sentence: damaged, without a version, of a newer or older schema, or of another shape.
    """
    name = f"a {model.__name__.lower()}"
    try:
        version = json.loads(content, parse_int=_whole, object_pairs_hook=_once).get("schema_version")
    except (TooLarge, Repeated) as error:
        raise ValueError(f"not {name}: {error}") from None
    except (ValueError, AttributeError, RecursionError):
        raise ValueError(f"not {name}: it is damaged") from None
    if type(version) is not int or version < 1:
        raise ValueError(f"not {name}: it names no schema version")
    if version > newest:
        raise ValueError(f"schema version {version} is newer than {newest}; update leantrain to read it")
    if version < oldest:
        raise OlderSchema(f"schema version {version} is older than {oldest} and cannot be read any more")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ValueError(f"not {name}: {printable(problem)}") from None


class OlderSchema(ValueError):
    """Is raised for what an older version wrote, in a form that is not read any more."""


class TooLarge(ValueError):
    """Is raised for a whole number that no count can be, and no float holds."""


class Repeated(ValueError):
    """Is raised for a member that stands twice in an object: readers differ in which one they take."""


def repeats_nothing(content: bytes | str) -> bool:
    """Tells whether JSON has no member twice in an object."""
    try:
        json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return False
    return True


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(once := dict(members)) < len(members):
        names = [name for name, _ in members]
        raise Repeated(f"{printable(next(name for name in names if names.count(name) > 1))} stands twice in it")
    return once


def _whole(digits: str) -> int:
    if len(digits) > 18 and not -(2**63) <= int(digits[:30]) < 2**63:
        raise TooLarge("it has a whole number beyond 64 bits")
    return int(digits)
