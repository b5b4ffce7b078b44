"""A cgroup's memory ends during a run: the technique that took it has a row that says so, the others are measured."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests import plugin
from tests.torture import Row, Scale, row, unavailable
from tests.torture.command import LIMIT_S, SHORT, place

TEST = "a cgroup's memory ends during a run (1.5 GiB)"
MOST_BYTES = 3 << 29
HUNGRY = "def after_step(self, run):\n    self.held = [bytearray(os.urandom(1 << 20)) * 64 for _ in range(40)]"


def attack(scale: Scale) -> Iterator[Row]:
    group = Path(own_group(), f"torture-{os.getpid()}")
    limit = group / ("memory.max" if (group.parent / "cgroup.controllers").exists() else "memory.limit_in_bytes")
    try:
        group.mkdir()
    except OSError as error:
        yield unavailable(TEST, f"no cgroup can be made: {error.strerror}")
        return
    try:
        try:
            limit.write_text(str(MOST_BYTES))
        except OSError as error:
            yield unavailable(TEST, f"the cgroup has no memory controller: {error.strerror}")
            return
        yield row(TEST, Counter(within(group) for _ in range(scale.trials(5))))
    finally:
        with suppress(OSError):
            group.rmdir()


def own_group() -> Path:
    """The cgroup of this process: of the memory controller, or of the one hierarchy."""
    of_all = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return of_all / "memory" / path.lstrip("/")
        if not controllers and (of_all / "cgroup.controllers").exists():
            return of_all / path.lstrip("/")
    return of_all / "memory"


def within(group: Path) -> str:
    """One trial, in words."""
    with place({"hungry": HUNGRY, "still": "pass"}) as at:
        with (at.folder / "sitecustomize.py").open("a") as file:  # from its first line on it is one of the group
            file.write(f"\nimport os\nopen({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n")
        process = at.start("run", *SHORT, "-t", "hungry", "-t", "still")
        told = process.communicate(timeout=LIMIT_S)[1]
        if b"Traceback" in told or process.returncode != 5:
            return f"exit code {process.returncode}: {told.splitlines()[-1:]}"
        learned = plugin.records(at.results).learned
        ends = {each.stack: (each.status, each.reason) for each in learned}
        if ends.get("still", ("", ""))[0] != "ok" or ends.get("hungry", ("", ""))[0] != "out_of_memory":
            return f"the rows say {sorted(ends.items())}"
        return at.left() or "held"
