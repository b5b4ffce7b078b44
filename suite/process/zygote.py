"""Forks processes on request: a zygote has loaded its libraries, does nothing else, and so has a single thread.

::

    command ── control ──► zygote ── forks ──► child, which first leads a session of its own
       ▲                      │
       └──── status ◄─────────┘ of each child: its id when it begins, its exit code when it has ended

Each request brings three handles: the child's end of its channel, where its output goes, and its status. The channel's
first two messages say whose child it is and what it calls. The zygote adopts what its children leave, and ends with the
command, with all that is below it. When it is killed, the kernel kills its children.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing import current_process, util
from multiprocessing.connection import Connection
from os import _exit  # as it was before a technique changed it
from typing import NoReturn

from suite.process.processes import adopt_orphans, end_strays, end_with_parent, has_ended, track_own_resources

NUMBER = struct.Struct("!i")  # of a status: an id, then an exit code; less than 0 in the first place: an errno
LOOK_S = 1.0  # so often a process looks for another one where the system has no handle of it


def main(command: int, modules: Sequence[str]) -> NoReturn:
    """Runs in a fresh Python, whose standard input is the control: loads the modules, and serves ``command``.

    The libraries are half a million objects and no garbage. Looking for some while they load takes a quarter of that
    time; and each collection in a child, of which a count makes several, would search them all and copy their pages.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it loads, Ctrl-C ends it without a word
    control = socket.socket(fileno=os.dup(0))
    os.dup2(2, 1)  # standard output is the command's own
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    serve(control, command)


def serve(control: socket.socket, command: int) -> NoReturn:
    """Forks a child for each request, until the process ``command`` is gone or has closed its end."""
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    gone = handle_of(command)
    waiting = select.poll()
    for handle in filter(None, (control.fileno(), woken, gone)):
        waiting.register(handle, select.POLLIN)
    statuses: dict[int, int] = {}  # by child
    while gone not in (ready := {handle for handle, _ in waiting.poll()}):
        if woken in ready:
            os.read(woken, 1 << 12)
            _tell_ends(statuses)
        if control.fileno() in ready:
            _, handles, _, _ = socket.recv_fds(control, 1, 3)
            if not handles:
                break
            _fork(handles, [control.fileno(), woken, waking, *filter(None, [gone])], statuses)
    end_strays(os.getpid())
    _exit(0)


def _tell_ends(statuses: dict[int, int]) -> None:
    """Waits for all that have ended, and tells the exit codes of children; others are orphans."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if (status := statuses.pop(ended[0], None)) is not None:
                _tell(status, os.waitstatus_to_exitcode(ended[1]))
                os.close(status)


def _tell(status: int, number: int) -> None:
    with suppress(OSError):  # nobody asks any more
        os.write(status, NUMBER.pack(number))


def _fork(handles: Sequence[int], own: Sequence[int], statuses: dict[int, int]) -> None:
    channel, output, status = handles
    zygote = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        child = -(error.errno or errno.EAGAIN)
    if child == 0:
        try:
            end_with_parent(zygote)
            begin(channel, output, [*own, status, *statuses.values()])
        finally:
            _exit(1)
    _tell(status, child)
    if child > 0:
        statuses[child] = status
    for handle in (channel, output) if child > 0 else handles:
        os.close(handle)


# in the child ---------------------------------------------------------------------------------------------------------


def begin(channel: int, output: int, foreign: Collection[int]) -> NoReturn:
    """Does what every child does first, and calls what it was forked for; what it prints goes to ``output``."""
    with suppress(OSError):
        os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for handle in (output, *foreign):
        os.close(handle)
    connection, code = Connection(channel), 1
    try:
        try:
            _become(*connection.recv())
            target, arguments = connection.recv()
        except (EOFError, ConnectionError):  # who asked for it is gone
            _exit(0)
        target(*arguments, connection)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        _exit(code)


def _become(command: int, paths: list[str], folder: str, arguments: list[str], scratch: str) -> None:
    """Makes this a process of the command's. Should a technique use multiprocessing, its sockets are in ``scratch``,
    which has a path that is short enough, and goes with the command."""
    threading.Thread(target=_end_with, args=(command,), daemon=True).start()
    sys.path[:], sys.argv[:] = paths, arguments
    with suppress(OSError):  # that folder is gone
        os.chdir(folder)
    before, tempfile.tempdir = tempfile.tempdir, scratch
    util.get_temp_dir()  # made once for a process
    tempfile.tempdir = before
    track_own_resources()
    current_process().daemon = True  # multiprocessing lets it start no other: they would compute beside the run


def _end_with(command: int) -> None:
    """Ends this process, and its group, when the command does, however that ends and whatever the main thread does: a
    zygote that is stopped ends nothing."""
    if (gone := handle_of(command)) is not None:
        waiting = select.poll()
        waiting.register(gone, select.POLLIN)
        waiting.poll()
    while gone is None and not has_ended(command):
        time.sleep(LOOK_S)
    with suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    _exit(0)


def handle_of(process: int) -> int | None:
    """Returns a handle that can be read once the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:  # it has ended
        return os.open(os.devnull, os.O_RDONLY)
    except (AttributeError, OSError):
        return None
