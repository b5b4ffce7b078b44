"""Keeps two source trees of one git repository side by side, each behind a worker process of its own.

The fork server of contenders has one tree's code loaded, so a comparison of code needs one worker (and server) a tree.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from suite.guard import gate_worker
from suite.guard.confinement import confine
from suite.process.child import ContenderFailed
from suite.process.processes import descendants, end_processes, end_with_parent, take_orphans
from suite.process.scratch import PREFIX, scratch
from suite.record.git import GitFailed, git
from suite.record.machine import ENVIRONMENT

ANSWER_LIMIT_S = 600.0  # importing torch and the models' libraries, and training a checkpoint the first time
GRACE_S = 5.0  # for a worker to remove what its contenders share
TAIL = 2000
MOST_PADDING = 4096  # that an environment is longer by: a page of the stack
PASSED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "TZ",
        "LANG",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "CC",
        "CXX",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
        "LEANTRAIN_CACHE",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_HUB_OFFLINE",
        "TOKENIZERS_PARALLELISM",
        *ENVIRONMENT,
    }
)
PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "TRITON_", "TORCHINDUCTOR_", "OMP_", "MKL_")


class RevisionError(ValueError):
    """Is raised where there is no such tree to compare with; the message says why and what to do."""


def top_of(folder: Path) -> Path:
    """Returns the top of the git checkout that ``folder`` is in. Raises RevisionError outside one."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    except RevisionError:
        raise RevisionError(f"{folder.resolve()} is in no git repository; run it in a checkout") from None


def is_revision(name: str, folder: Path) -> bool:
    """Tells whether git knows a commit by that name there."""
    try:
        return bool(_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"))
    except RevisionError:
        return False


@contextmanager
def checked_out(revision: str, top: Path) -> Iterator[Path]:
    """Has ``revision`` of the repository at ``top`` in a temporary work tree, removed afterwards; one that a killed
    process left is removed before.

    Raises RevisionError for an unknown revision.
    """
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except RevisionError:
        raise RevisionError(
            f"{revision!r} is neither a file nor a revision of {top.name}; fetch it (in GitHub Actions: "
            f"fetch-depth: 0), or save a reference with --save"
        ) from None
    with tempfile.TemporaryDirectory(prefix="tree-", dir=scratch()) as folder:  # which removes what dead ones left
        _forget_removed(top)
        tree = Path(folder) / top.name
        try:
            _git(top, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            yield tree
        finally:
            shutil.rmtree(tree, ignore_errors=True)
            _forget_removed(top)


def _forget_removed(top: Path) -> None:
    """Has git forget the work trees of ours that are gone, and none of the user's."""
    listed = [
        line.removeprefix("worktree ")
        for line in _git(top, "worktree", "list", "--porcelain").splitlines()
        if line.startswith("worktree ")
    ]
    for tree in map(Path, listed):
        if not tree.exists() and tree.parent.name.startswith("tree-") and tree.parents[1].name.startswith(PREFIX):
            with suppress(RevisionError):  # another process forgot it just now
                _git(top, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> str:
    try:
        return git(folder, *arguments)
    except FileNotFoundError:
        raise RevisionError("git is not installed; install it, or compare with a stored reference") from None
    except GitFailed as error:
        raise RevisionError(str(error)) from None


def _confined() -> None:
    """The program that this process becomes ends with ours, is the parent of what its descendants leave, and sees no
    other process's environment."""
    end_with_parent()
    take_orphans()
    confine()


def environment() -> dict[str, str]:
    """Returns what a worker sees of this process's environment: what decides how it computes and where its caches are,
    and no secret. A revision's code runs as soon as Python starts in its tree (``sitecustomize``)."""
    return {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}


class TreeWorker:
    """Runs a worker process over ``tree`` (its top and ``src``, if it has one, lead the path). Use as a context
    manager.

    A ``coin`` draws a worker that is timed a memory layout of its own: an order of hashes, a length of its environment
    (the system draws its addresses). Without one the order of hashes is fixed, for what is counted to repeat.
    """

    def __init__(self, tree: Path, coin: random.Random | None = None) -> None:
        self.tree = tree
        path = [str(tree)] + ([str(tree / "src")] if (tree / "src").is_dir() else [])
        before = os.environ.get("PYTHONPATH")
        path_text = os.pathsep.join(path + ([before] if before else []))
        padding = "-" * (coin.randrange(MOST_PADDING) if coin else 0)
        seed = str(coin.randrange(2**32) if coin else 0)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in close
        self._temporary = tempfile.mkdtemp(prefix="t-", dir=scratch())  # of what its code leaves there, too
        own = {"PYTHONPATH": path_text, "PYTHONHASHSEED": seed, "LEANTRAIN_PADDING": padding, "TMPDIR": self._temporary}
        self._process = subprocess.Popen(
            [sys.executable, "-P", gate_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment() | own,
            preexec_fn=_confined,
        )
        self._buffer = b""

    def __enter__(self) -> TreeWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, command: str, **arguments: Any) -> Any:
        """Returns the worker's answer. Raises ContenderFailed, also where the worker itself ends or stays silent."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        answer = json.loads(self._line(command))
        if "failed" in answer:
            raise ContenderFailed(*answer["failed"])
        return answer["done"]

    def _line(self, command: str) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise ContenderFailed("hung", f"no answer to {command!r} within {ANSWER_LIMIT_S:g} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise self._death()
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> ContenderFailed:
        code = self._process.wait()
        self._log.seek(0)
        printed = self._log.read().decode("utf-8", "replace").strip()
        last = printed.splitlines()[-1] if printed else "it said nothing"
        return ContenderFailed(
            "crashed", f"the worker of {self.tree.name} ended with code {code}: {last}", printed[-TAIL:]
        )

    def close(self) -> None:
        """Ends the worker, and with it its contenders and whatever else its tree's code started."""
        assert self._process.stdin is not None
        started = descendants(self._process.pid) if self.alive else {}
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            started |= descendants(self._process.pid)
            self._process.kill()
            self._process.wait()
        end_processes(started)
        shutil.rmtree(self._temporary, ignore_errors=True)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if not self._log.closed:
            self._log.close()
