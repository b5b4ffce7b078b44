"""Finds and ends processes and all that they start: each child leads a session of its own, and ends with everything in
it.

::

    command ── zygote (adopts orphans) ── child (leads a session) ── whatever a technique starts

A child that dies leaves its children to the zygote, also those that left its session, and so nothing is out of reach:
whatever stands below the zygote in another session than its own is a child's. When the command dies, however it dies,
the zygote notices, ends all of that, and itself. When the zygote is killed, the kernel kills its children. The part
with orphans and kernel signals needs Linux; elsewhere a child's session is all that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
PATIENCE_S = 5.0  # for what was killed to be gone: a process in the kernel's hands dies when that lets go of it
CLEARING_S = 2.0  # for a resource tracker to remove what the dead have left
LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class LivingProcesses:
    """Describes a process that is no zombie."""

    parent: int
    session: int


def living() -> Mapping[int, LivingProcesses]:
    """Returns all processes by id; none where there is no /proc."""
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (stat := _stat(int(folder.name))) and stat[0] not in (b"Z", b"X"):
            table[int(folder.name)] = LivingProcesses(int(stat[1]), int(stat[3]))
    return table


def _stat(process: int) -> list[bytes]:
    """Returns what /proc says of a process, from its state on; nothing where it has ended, or there is no /proc."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def is_stopped(process: int) -> bool:
    """Tells whether a signal has stopped it, or a debugger."""
    return _stat(process)[:1] in ([b"T"], [b"t"])


def has_ended(process: int) -> bool:
    """Tells whether there is no such process any more, nor one that nobody has waited for."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal at the end of the thread that forked it, in the process ``parent``."""
    parent = parent or os.getppid()
    if LINUX:
        _libc.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
        if os.getppid() != parent:  # it ended in between
            os._exit(0)


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave, in a session of its own."""
    with suppress(OSError):
        os.setsid()
    take_orphans()


def take_orphans() -> None:
    """Makes this process, and the program that it becomes, the parent of what its descendants leave."""
    if LINUX:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(process: int) -> dict[int, int]:
    """Returns the processes below one now, each with the ticks since boot at which it began."""
    return {pid: began for pid in _below(living(), {process}) if (began := _began(pid)) is not None}


def end_processes(started: Mapping[int, int]) -> None:
    """Kills those of the :func:`descendants` that still live, and all that is below them or in their sessions."""

    def victims(table: Mapping[int, LivingProcesses]) -> set[int]:
        own = {pid for pid, began in started.items() if pid in table and _began(pid) == began}
        mates = {pid for pid, known in table.items() if known.session in own}
        return own | mates | _below(table, own)

    _end(victims)


def _began(process: int) -> int | None:
    """Tells when a process started, in ticks since boot: another one with its number began later."""
    stat = _stat(process)
    return int(stat[19]) if stat else None


def end_session(leader: int) -> None:
    """Kills a session and whatever descends from its leader."""
    if not LINUX:
        with suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
        return
    _end(lambda table: _below(table, {leader}) | {pid for pid, known in table.items() if known.session == leader})


def end_strays(server: int, spared: Collection[int] = ()) -> None:
    """Kills what stands below a zygote in another session than its own, but for the sessions of ``spared``."""

    def strays(table: Mapping[int, LivingProcesses]) -> set[int]:
        own = table[server].session if server in table else server
        foreign = {
            pid
            for pid, known in table.items()
            if known.parent == server and known.session != own and pid not in spared and known.session not in spared
        }
        return foreign | (_below(table, foreign) if foreign else set())

    if LINUX:
        _end(strays)


def oom_kills() -> int | None:
    """Counts the processes that the kernel has killed for want of memory since it started; None where it does not
    say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def track_own_resources() -> None:
    """Gives this process a resource tracker of its own, once it needs one: shared memory that it leaves goes
    with it, and not only with the command, whose tracker a fork has."""
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None:
        os.close(tracker._fd)
    tracker._fd = tracker._pid = None


def _end(victims_in: Callable[[Mapping[int, LivingProcesses]], set[int]]) -> None:
    begin_s = time.monotonic()
    while victims := victims_in(living()) - {os.getpid()}:
        passed_s = time.monotonic() - begin_s
        for pid in victims:
            if passed_s > CLEARING_S or not _is_tracker(pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if passed_s > PATIENCE_S:
            return
        time.sleep(0.005)


def _is_tracker(process: int) -> bool:
    """Tells whether it removes what others have left of shared memory, and then ends by itself."""
    with suppress(OSError):
        return b"resource_tracker import main" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def _below(table: Mapping[int, LivingProcesses], roots: Collection[int]) -> set[int]:
    """Returns all descendants of the roots."""
    children: dict[int, list[int]] = {}
    for pid, known in table.items():
        children.setdefault(known.parent, []).append(pid)

    def walk(parent: int) -> Iterator[int]:
        for child in children.get(parent, ()):
            yield child
            yield from walk(child)

    return {descendant for root in roots for descendant in walk(root)}
