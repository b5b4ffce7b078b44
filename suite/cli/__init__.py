"""The command line: commands only, each a thin shell around the module that does the work."""

from __future__ import annotations

import os

# isort: off
from suite.cli import look, measure, report, guard  # noqa: F401  each adds its commands, in the order of --help

# isort: on
from suite.cli.shared import Exit, app

__all__ = ["Exit", "app", "main"]


def main() -> None:
    """The console script."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    app()
