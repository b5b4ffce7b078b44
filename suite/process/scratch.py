"""Keeps one temporary folder for a process and all that it starts, which the next process removes where this one
cannot.

It has a lock for as long as its process lives, however that ends. A folder whose lock nobody holds is what a killed
process left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "leantrain-"
LOCK = "alive.lock"
LONGEST = 50
"""Bytes of the path that it may lie in: a socket's path has at most 107 (unix(7); 103 on macOS), and those of
multiprocessing lie two folders below."""

_folders: dict[int, tuple[Path, FileLock]] = {}  # by process: a forked one has its own


def scratch() -> Path:
    """Returns this process's folder, made when it is first asked for, and removed when the process ends.

    Raises OSError where there is no temporary folder with a path that is short enough for a socket's.
    """
    if os.getpid() not in _folders:
        prune()
        _folders[os.getpid()] = _new_folder()
        Finalize(None, _remove, (os.getpid(),), exitpriority=-200)  # after all that lies in it
    return _folders[os.getpid()][0]


def prune() -> None:
    """Removes what processes left that live no more."""
    for place in _places():
        for folder in _left(place):
            lock = FileLock(folder / LOCK, timeout=0)
            try:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)
            except (
                Timeout,
                OSError,
                NotImplementedError,
            ):  # it lives; or somebody removes it just now
                continue


def _left(place: Path) -> Iterator[Path]:
    try:
        folders = list(place.glob(f"{PREFIX}*"))
    except OSError:
        return
    for folder in folders:
        try:
            if (folder / LOCK).is_file() and folder.lstat().st_uid == os.getuid():
                yield folder
        except OSError:
            continue


def _places() -> list[Path]:
    """Lists where temporary folders may be, the user's choice first."""
    chosen = (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp")
    return [Path(place) for place in dict.fromkeys(filter(None, chosen))]


def _new_folder() -> tuple[Path, FileLock]:
    for place in _places():
        if len(os.fsencode(place)) > LONGEST:
            continue
        try:
            hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place))
        except OSError:
            continue
        lock = FileLock(hidden / LOCK)
        try:
            lock.acquire()
        except (OSError, NotImplementedError):  # a file system without locks: nobody could tell that it lives
            shutil.rmtree(hidden, ignore_errors=True)
            continue
        folder = place / hidden.name[1:]
        hidden.rename(folder)  # nobody sees it without its lock held
        return folder, lock
    raise OSError(
        f"no temporary folder can be written and locked whose path leaves room for a socket's; set TMPDIR to one of at "
        f"most {LONGEST} characters, on a file system that has locks (flock)",
    )


def _remove(process: int) -> None:
    folder, lock = _folders.pop(process)
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
