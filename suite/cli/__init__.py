"""Has the command line: it turns options into values of the suite, calls one function, and prints what comes back.

Here belong options, messages, tables for a terminal and exit codes. What is measured, judged or drawn belongs to the
packages below, all of which may be imported here; nothing but the console script imports this package. A command
imports what it needs when it runs, so that ``--help``, ``--version`` and ``list`` start without torch. It hands on
exit codes (:class:`Exit`) and, with ``--json``, one JSON document on standard output.
"""

from __future__ import annotations

import gc
import os
import sys

# isort: off
from suite.cli.readers import let_readers_leave, output_whole  # first: it opens what is closed
from suite.cli import look, measure, count, apply, recommend, judge, read, share, guard, models, others, agents  # noqa: F401  each adds its commands

# isort: on
from suite.cli.apart import supervised
from suite.cli.shared import Exit, app, end_by_signals

__all__ = ["Exit", "app", "main"]


def main() -> None:
    """Runs the console script."""
    let_readers_leave()
    with output_whole(Exit.RUN_FAILED):
        supervised(sys.argv[1:], _run)


def _run() -> None:
    end_by_signals()
    gc.set_threshold(100_000)  # what a command loads is no garbage: looking for some took a quarter of the time
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    app(prog_name="leantrain")
