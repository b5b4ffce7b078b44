"""Keeps the operators of traced steps by place and stack, in one file of a results folder: a new device, or a new
constant, takes no new trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from suite.record.files import read_plain, replacing
from suite.record.operator_counts import TracedStep
from suite.record.placed import CountPlace

NAME = "step_traces.json.gz"


@dataclass(frozen=True)
class KeptTrace:
    """Holds the operators of ``steps`` steps of a stack together, or why there are none; ``code`` is a hash of the code
    that ran."""

    code: str
    step: TracedStep | None = None
    unavailable: str = ""
    steps: int = 1


Traces = Mapping[tuple[CountPlace, str], KeptTrace]
"""By place and stack."""


def read(folder: Path) -> Traces:
    """Reads the traces of a results folder. Raises ValueError or OSError where they cannot be read."""
    path = folder / NAME
    try:
        known = json.loads(gzip.decompress(read_plain(path)))
        return {
            (CountPlace(*entry["place"]), entry["stack"]): KeptTrace(
                entry["code"],
                TracedStep.from_json(entry["step"]) if entry["step"] else None,
                entry["unavailable"],
                entry["steps"],
            )
            for entry in known
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}; delete it and trace again: leantrain count --keep --gpu A100-80") from None


def write(traces: Traces, folder: Path) -> None:
    """Writes the traces into a results folder, equal ones to equal bytes. Raises OSError."""
    stored = [
        {
            "place": place,
            "stack": stack,
            "code": trace.code,
            "step": trace.step.as_json() if trace.step else "",
            "unavailable": trace.unavailable,
            "steps": trace.steps,
        }
        for (place, stack), trace in sorted(traces.items(), key=lambda item: item[0])
    ]
    with replacing(folder / NAME) as partial:
        partial.write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
