"""Asks git about a checkout that may be anybody's: no command that the checkout itself names is run.

A checkout's ``.git/config`` may name programs: a monitor of files, hooks, filters of contents. Git would run them with
the environment of whoever asks, a job's tokens among it. So they are switched off, and git sees little of the
environment: neither secrets nor the variables that lead it to another repository. What the user's own configuration
says stays.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME")
OFF = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "core.askPass": "",
    "core.alternateRefsCommand": "",
    "diff.external": "",
    "submodule.recurse": "false",
    "protocol.allow": "never",
}
"""Settings that name programs, or have git fetch what is elsewhere."""
LIMIT_S = 600.0


class GitFailed(RuntimeError):
    """Is raised with what git says that it cannot do."""


def git(folder: Path, *arguments: str) -> str:
    """Returns what a git command prints that asks, or checks out, in ``folder``.

    Raises FileNotFoundError where git is not installed, GitFailed where it fails.
    """
    return _run(folder, {**OFF, **dict.fromkeys(_filters(folder), "")}, arguments)


def _filters(folder: Path) -> Iterator[str]:
    """Yields the settings by which the checkout itself names filters of contents."""
    listed = _run(folder, OFF, ("config", "--list", "--show-scope", "--name-only", "-z")).split("\0")
    for scope, name in zip(listed[::2], listed[1::2], strict=False):
        if scope in ("local", "worktree") and name.startswith("filter."):
            yield name


def _run(folder: Path, settings: dict[str, str], arguments: tuple[str, ...]) -> str:
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    fixed = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    named = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *named, *arguments],
            env=environment | fixed,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        raise GitFailed(f"git {arguments[0]}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {arguments[0]}: no answer within {LIMIT_S:g} s") from None
    return done.stdout
