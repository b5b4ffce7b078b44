"""Keeps checkpoints as files: whole, or made again.

``torch.save`` writes a zip archive, which has a CRC-32 of each of its parts and its table at its end. So a file that
was cut off or changed on the disk is known by itself, whoever wrote it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def is_whole(path: Path) -> bool:
    """Tells whether the file is there, and is every byte as it was written. Reads all of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError):
        return False


def intact(make: Callable[[], Path]) -> Path:
    """Returns the file that ``make`` gives, which writes it where it is not there; one that is damaged is written
    again.

    ``make`` writes it under the lock beside it. Raises OSError where it is damaged as soon as it is written.
    """
    for _ in range(3):  # another process may have removed it meanwhile, as this one does
        path = make()
        if is_whole(path):
            return path
        with FileLock(path.with_suffix(".lock")):  # nobody makes it now, so what is damaged is not another's new one
            if not is_whole(path):
                path.unlink(missing_ok=True)
    raise OSError(f"{path} is damaged as soon as it is written; is the disk full?")
