"""Disks that are full: real ones, of some kilobytes of memory each."""

from __future__ import annotations

import random
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.record.store import Store, StoreError
from tests import factories
from tests.torture import Row, Scale, row, unavailable

TEST = "a disk becomes full while records are appended"


def attack(scale: Scale) -> Iterator[Row]:
    coin, outcomes = random.Random(0), Counter[str]()
    for _ in range(scale.trials(20)):
        try:
            with small_disk(coin.randrange(8, 128)) as folder:
                outcomes[filled(folder)] += 1
        except Unmountable as error:
            yield unavailable(TEST, str(error))
            return
    yield row(TEST, outcomes)


class Unmountable(RuntimeError):
    """No disk can be made here; the message says why."""


@contextmanager
def small_disk(kilobytes: int) -> Iterator[Path]:
    """A disk of so many KiB."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "leantrain-torture", folder]
            subprocess.run(mount, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise Unmountable("there is no mount here") from None
        except subprocess.CalledProcessError as error:
            raise Unmountable(f"a tmpfs cannot be mounted: {error.stderr.strip()}") from None
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def filled(folder: Path) -> str:
    """One trial, in words: appends until the disk is full, makes room, and goes on."""
    store, stored = Store(folder / "results"), set[str]()
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * 4096)
    try:
        while True:
            line = factories.counted(id=uuid.uuid4().hex)
            store.append(line, "here")
            stored.add(line.id)
    except StoreError as error:
        said = str(error)
    if "the disk is full; what was measured before is kept" not in said and "No space left" not in said:
        return f"it says: {said}"
    ballast.unlink()
    last = factories.counted(id=uuid.uuid4().hex)
    store.append(last, "here")
    records, problems = store.read()
    if problems:
        return f"{len(problems)} damaged lines"
    return "held" if {each.id for each in records.counted} == stored | {last.id} else "records lost"
