"""Keeps prepared data on disk: one folder per preparation, named by everything that went into it.

The name hashes the raw content, the parameters and the preparation code, so nothing in the cache is ever stale. A
folder appears whole or not at all (built aside, then renamed), once, whatever the number of processes (a file lock).

Hashing what has not changed would cost more than a contender's start may, so a file is taken as unchanged while its
size and modification time are: for raw files that stamp finds their recorded hash, for prepared ones it stands for it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from suite.record.files import cache_folder

_CODE = (
    "cache.py",
    "source.py",
    "plain_files.py",
    "classes.py",
    "documents.py",
    "text.py",
    "images.py",
)  # what decides the bytes of a prepared folder
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Prepared:
    """Describes a finished folder: ``sha256`` of its files, and the ``facts`` that its preparation recorded."""

    folder: Path
    sha256: str
    facts: Mapping[str, Any]

    def array(self, name: str) -> Tensor:
        """Reads ``name``.npy as a memory-mapped CPU tensor.

        Mapped copy-on-write: a write would reach neither the file nor another process, where in a read-only mapping
        it would end the process with a segmentation fault.
        """
        return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))


def prepared(parameters: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> Prepared:
    """Returns the folder of ``parameters`` (JSON), made by ``build(empty folder) -> facts`` (JSON) when missing or
    damaged.

    Raises PermissionError where the cache cannot be written, and whatever ``build`` raises, leaving nothing behind.
    """
    key = _digest({"code": _code(), **parameters})
    folder = cache_folder() / "data" / key
    intact = _intact(folder)
    if intact is None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PermissionError(
                f"cannot write prepared data under {cache_folder()} ({error}): set LEANTRAIN_CACHE to a writable folder"
            ) from error
        with FileLock(f"{folder}.lock"):
            intact = _intact(folder) or _built(folder, build)
    return intact


def content_hash(files: Mapping[str, Path]) -> str:
    """Computes SHA-256 over the names and bytes of ``files``; only read when a size or modification time changed."""
    stamp = _digest({name: [os.path.abspath(path), *_stamp(path)] for name, path in files.items()})
    record = cache_folder() / "hashes" / stamp
    try:
        known = record.read_text()
        if len(bytes.fromhex(known)) == hashlib.sha256().digest_size:
            return known
    except (OSError, ValueError):
        pass
    content = _digest({name: _file_hash(path) for name, path in files.items()})
    record.parent.mkdir(parents=True, exist_ok=True)
    _write(record, content)
    return content


def _built(folder: Path, build: Callable[[Path], Mapping[str, Any]]) -> Prepared:
    """Builds aside and renames; the caller holds the lock, so a leftover of either kind belongs to nobody."""
    aside = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        facts = dict(build(aside))
        hashes = {path.name: _file_hash(path) for path in sorted(aside.iterdir())}
        stamps = {name: _stamp(aside / name) for name in hashes}
        _write(aside / _MANIFEST, json.dumps({"facts": facts, "hashes": hashes, "stamps": stamps}))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Prepared(folder, _digest(hashes), facts)


def _intact(folder: Path) -> Prepared | None:
    """Returns the folder if every file is as it was written, by stamp, or by content where a stamp differs (a copied
    cache)."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        hashes, stamps = manifest["hashes"], manifest["stamps"]
        for name, expected in hashes.items():
            if _stamp(folder / name) != stamps[name]:
                if _file_hash(folder / name) != expected:
                    return None
                stamps[name] = _stamp(folder / name)
                _write(folder / _MANIFEST, json.dumps(manifest))
        return Prepared(folder, _digest(hashes), manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    """Writes atomically: a reader sees the old text or the new one."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(text)
    os.replace(aside, path)


@cache
def _code() -> str:
    return _digest({name: _file_hash(Path(__file__).with_name(name)) for name in _CODE})
