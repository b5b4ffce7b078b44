"""Tells what the parent sees of a contender, by its own clock and the kernel's accounts, beside what that one says.

::

    parent's clock   ├── asked ───────── answered ──┤          ├── asked ──
    the child says      ├─── seconds ──┤                           ...
    the kernel says     processor time of the block  │ of the wait │

A child whose clock stands still is away for longer than it says, in every block alike. What a busy machine adds is
known in part, the time for which processes waited for a core, and differs from block to block: the least that was added
over all blocks beside that is next to nothing where the clock is true. No process computes for longer than its cores
were there. A contender waits while others are timed, and computes nothing then. Its
peak of memory is no less than what it was seen to hold.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from suite.measure.rules.broken import RuleBroken

LEARNED = "what is timed is what learns"
CLOCK, PROCESSOR, WAITING, CORES, PEAK = (
    "the clock is the parent's",
    "processor time is the kernel's",
    "who waits computes nothing",
    "no more cores than threads",
    "the peak is no less than what was seen",
)
ROUNDING = {"cpu": 1e-5, "cuda": 1e-2}  # by which losses of one seed may differ, relative: a GPU adds up in any order
LATER = {"cpu": 1e-2, "cuda": 0.1}  # after FIRST_STEPS steps, in which a rounding has grown
FIRST_STEPS = 4
FEWEST_BLOCKS = 4  # of which one at least was not disturbed
OUTSIDE_SHARE, OUTSIDE_S = 0.2, 0.05  # of a block, and of each: what a channel and a check take beside the steps
TOLERANCE, SLACK_S = 1.25, 0.3  # of the kernel's account, which counts in ticks of 10 ms
WAITING_SHARE = 0.2  # of what the blocks took: what may be computed beside them
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass
class Watch:
    """Keeps the accounts of one rank's process, block by block. ``orphans``: processes that it left behind, whose work
    is its own, and what each had computed for when that was seen."""

    pid: int
    orphans: dict[int, float] = field(default_factory=dict)
    outside_s: list[float] = field(default_factory=list)  # the parent's seconds that the child does not own to
    said_s: list[float] = field(default_factory=list)
    said_cpu_s: float = 0.0
    cpu_s: float = 0.0  # the kernel's, in blocks
    wall_s: float = 0.0
    waiting_cpu_s: float = 0.0
    orphans_cpu_s: float = 0.0  # since they were left behind
    seen_bytes: int = 0
    _asked: tuple[float, float, float] | None = None
    _answered_cpu_s: float | None = None

    def left(self, orphans: Iterable[int]) -> None:
        """It has left these processes behind."""
        for process in orphans:
            self.orphans.setdefault(process, processor_s(process) or 0.0)

    def asked(self) -> None:
        """Notes that a block begins."""
        now_cpu_s = processor_s(self.pid, self.orphans)
        if self._answered_cpu_s is not None and now_cpu_s is not None:
            self.waiting_cpu_s += now_cpu_s - self._answered_cpu_s
        self._answered_cpu_s = None
        self._asked = None if now_cpu_s is None else (time.monotonic(), now_cpu_s, queued_s(self.pid))

    def queued_since_asked_s(self) -> float:
        """Adds up for how long the child's threads waited for a core."""
        return queued_s(self.pid) - self._asked[2] if self._asked else 0.0

    def answered(self, seconds: float, cpu_s: float, queued_s: float = 0.0) -> None:
        """Adds up a block that is over: what the child says that it took, and for how long its answer waited for a
        core."""
        now_s, now_cpu_s = time.monotonic(), processor_s(self.pid, self.orphans)
        if self._asked is None or now_cpu_s is None:
            return
        began_s, began_cpu_s, _ = self._asked
        spent = sum((processor_s(process) or before_s) - before_s for process, before_s in self.orphans.items())
        self.orphans_cpu_s = max(self.orphans_cpu_s, spent)
        self.outside_s.append(now_s - began_s - seconds - queued_s)
        self.said_s.append(seconds)
        self.said_cpu_s += cpu_s
        self.cpu_s += now_cpu_s - began_cpu_s
        self.wall_s += now_s - began_s
        self.seen_bytes = max(self.seen_bytes, resident_bytes(self.pid))
        self._answered_cpu_s = now_cpu_s

    def other(self) -> None:
        """Notes that something else than a block is asked for: what is computed from now on is no waiting."""
        self._answered_cpu_s = None


def check(watch: Watch, threads: int | None) -> None:
    """Raises RuleBroken where the accounts and the child's words do not go together; ``threads`` None where processes
    and threads of others may compute for it (compilers, a GPU's driver)."""
    if len(watch.said_s) < FEWEST_BLOCKS:
        return
    least_s, usual_s = min(watch.outside_s), statistics.median(watch.said_s)
    if least_s > OUTSIDE_S + OUTSIDE_SHARE * usual_s:
        raise RuleBroken(
            CLOCK, f"by its own clock a block takes {usual_s:.3g} s, by the parent's {least_s:.3g} s more at least"
        )
    if threads is None:
        return
    if watch.orphans_cpu_s > SLACK_S:  # however busy the machine is, which leaves them a small share of the time
        raise RuleBroken(PROCESSOR, f"processes that it left behind computed for {watch.orphans_cpu_s:.3g} s")
    if watch.waiting_cpu_s > WAITING_SHARE * watch.wall_s + SLACK_S:
        raise RuleBroken(WAITING, f"it computed for {watch.waiting_cpu_s:.3g} s while others had their turn")
    if watch.cpu_s > TOLERANCE * threads * watch.wall_s + SLACK_S:
        raise RuleBroken(
            CORES, f"its blocks took {watch.cpu_s / watch.wall_s:.3g} cores, and the setting has {threads}"
        )
    if watch.cpu_s > TOLERANCE * watch.said_cpu_s + SLACK_S:
        raise RuleBroken(
            PROCESSOR, f"it says that its blocks computed for {watch.said_cpu_s:.3g} s, the kernel {watch.cpu_s:.3g} s"
        )


def check_losses(own: Sequence[float], learned: Sequence[float], device: str, where: str, else_where: str) -> None:
    """Raises RuleBroken where the losses of one job's steps ``where`` it is measured are not those that it has
    ``else_where``."""
    kind = device.partition(":")[0]
    for step, (loss, expected) in enumerate(zip(own, learned, strict=True), 1):
        if not math.isclose(loss, expected, rel_tol=(ROUNDING if step <= FIRST_STEPS else LATER)[kind]):
            what = f"the loss of step {step} is {loss:.6g} {where}, {expected:.6g} {else_where}"
            raise RuleBroken(LEARNED, what)


def check_peak(watches: Sequence[Watch], said_bytes: int | None) -> None:
    """Raises RuleBroken where the first rank's peak is less than what it was seen to hold between its blocks."""
    if said_bytes is not None and watches and watches[0].seen_bytes > TOLERANCE * said_bytes:
        seen, said = (f"{size / 2**20:.4g} MiB" for size in (watches[0].seen_bytes, said_bytes))
        raise RuleBroken(PEAK, f"it says that it held {said} at most, and was seen to hold {seen}")


def queued_s(pid: int) -> float:
    """Returns the seconds for which a process's threads that live were ready and waited for a core; 0 where the kernel
    does not say."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                total += int((thread / "schedstat").read_bytes().split()[1])
    return total / 1e9


def processor_s(pid: int, orphans: Iterable[int] = ()) -> float | None:
    """Returns the seconds that a process, its descendants and its ``orphans`` have computed for, ended ones with them,
    by the kernel's account; None where there is none."""
    total = 0.0
    waiting, known = [pid, *orphans], False
    while waiting:
        process = waiting.pop()
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS  # user, system, and those of children that were waited for
            known = known or process == pid
            waiting += map(int, Path(f"/proc/{process}/task/{process}/children").read_bytes().split())
    return total if known else None


def resident_bytes(pid: int) -> int:
    """Returns the bytes that a process holds in memory now; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
