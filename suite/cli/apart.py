"""Runs a command whose work runs a technique's or a model's code in a process apart, which is watched.

Its output is its own. Where it crashes, or says nothing for so long that it never will, what waits says so in one
sentence and ends what is left: no segfault and no endless loop of a technique's is the command's own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from suite.process.watched import watch

SILENCE_S = {
    "list": 120.0,
    "apply": 300.0,
    "count": 900.0,
    "plan": 900.0,
    "leaderboard": 1800.0,
    "history": 1800.0,
    "claims": 1800.0,
    "kernels": 7200.0,
    "study": 21600.0,
}
"""Commands that load or run techniques, their studies and kernels, and models of users, themselves, and how long they
may be silent. All others ask contenders, which are processes of their own."""
RUN_FAILED = 5


def supervised(arguments: Sequence[str], work: Callable[[], object], silence_s: float | None = None) -> object:
    """Returns ``work()``, in a process of its own where the command ``arguments`` is one of those: does not return
    then.

    Where the system cannot fork, or nobody waits (a completion), it runs here.
    """
    limit_s = silence_s or SILENCE_S.get(_work_of(arguments))
    asks = "--help" in arguments or any(name.endswith("_COMPLETE") for name in os.environ)
    if limit_s is None or asks or not hasattr(os, "fork"):
        return work()
    ended = watch(limit_s)
    if ended is None:
        return work()
    if isinstance(ended, str):
        if "--json" in arguments:
            print(json.dumps({"error": ended, "exit_code": RUN_FAILED}))
        print(f"leantrain: {ended}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(RUN_FAILED if isinstance(ended, str) else ended)


def _work_of(arguments: Sequence[str]) -> str:
    """Returns the command whose work it is: a check of the kernels alone does what their own does."""
    command = arguments[0] if arguments else ""
    return "kernels" if command == "check" and "--kernels" in arguments else command
