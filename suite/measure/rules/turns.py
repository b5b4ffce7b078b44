"""Finds who did what to whom: contenders of one set take turns, so what changed of the others while one had its turn is
its doing, and what it leaves behind is its own.

::

    turn of B   ├── block ──┤   A's priority, cores and scheduling as before?   new orphans of the server: B's
    turn of A                ├── block ──┤   B's as before?                     new orphans of the server: A's

Without that the one whose priority was lowered would be told that it changed it, and an orphan's work would be
nobody's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from suite.measure.rules.broken import RuleBroken
from suite.process.processes import living

OTHERS = "others are left alone"


@dataclass(frozen=True)
class Treatment:
    """Says how the system treats a thread."""

    priority: int
    cores: frozenset[int]
    policy: int


def treatments(process: int) -> dict[int, Treatment]:
    """Returns all threads of a process, by their ids; none where it has ended, or the system does not say."""
    with suppress(OSError):
        threads = map(int, os.listdir(f"/proc/{process}/task"))
        return {thread: known for thread in threads if (known := treatment_of(thread))}
    return {}


def treatment_of(thread: int) -> Treatment | None:
    """Asks how the system treats one thread; None where it has ended."""
    with suppress(OSError):
        cores = frozenset(os.sched_getaffinity(thread))
        return Treatment(os.getpriority(os.PRIO_PROCESS, thread), cores, os.sched_getscheduler(thread))
    return None


class Disturbed(RuleBroken):
    """Is raised where a turn changed how the system treats others; ``lost`` are processes of theirs that could not be
    put back."""

    def __init__(self, what: str, lost: frozenset[int]) -> None:
        super().__init__(OTHERS, what)
        self.lost = lost


def put_back(before: Mapping[int, Treatment]) -> bool:
    """Has the system treat threads as before. False where it does not let us: a priority is not raised by everybody."""
    for thread, own in before.items():
        with suppress(OSError):
            os.sched_setaffinity(thread, own.cores)
            os.sched_setscheduler(thread, own.policy, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, thread, own.priority)
    return all(treatment_of(thread) in (own, None) for thread, own in before.items())


class Turns:
    """Knows what stands around the contenders of one set, as it was after the turn before."""

    def __init__(self) -> None:
        self._treated: dict[int, dict[int, Treatment]] = {}
        self._orphans: set[int] = set()

    def ended(self, own: Sequence[int], others: Sequence[int], server: int) -> set[int]:
        """Returns the orphans that the turn of the processes ``own`` left with the ``server``.

        Raises Disturbed where a thread of the processes ``others`` is treated otherwise than before; it is put back
        where the system lets us.
        """
        moved = {process: self._moved(process) for process in others}
        orphans = {pid for pid, known in living().items() if known.parent == server} - {*own, *others}
        left, self._orphans = orphans - self._orphans, orphans
        lost = frozenset(process for process, threads in moved.items() if not put_back(threads))
        for process in (*own, *others):
            self._treated[process] = treatments(process)
        if any(moved.values()):
            raise Disturbed("it changed the priority, the cores or the scheduling of another side", lost)
        return left

    def _moved(self, process: int) -> dict[int, Treatment]:
        """Returns the threads that are treated otherwise than before, as they were."""
        before, now = self._treated.get(process, {}), treatments(process)
        return {thread: own for thread, own in before.items() if thread in now and now[thread] != own}
