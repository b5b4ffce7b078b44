"""Holds reserved bytes, by a model of torch's caching allocator, beside what nvidia-smi showed of published runs.

    python -m research.published_steps.reserved_peaks

traces a whole step of the first row of each model and technique that fine-tunes on one GPU (layers are equal, but the
order of allocations is none that two depths give), and writes ``reserved.csv``: rows that it has are not traced again.
nvidia-smi shows what the allocator holds and the CUDA context: 0.55 GiB are taken off for that. Nothing is fitted.
"""

from __future__ import annotations

import csv
import importlib
import math
from contextlib import ExitStack
from dataclasses import dataclass

from research.published_steps.published_rows import FOLDER, GIB, PublishedRow, lines_of, rows

RESERVED = "reserved.csv"
COLUMNS = ("line", "model", "technique", "counted_bytes", "reserved_bytes", "shown_bytes")
TABLE = "fms_finetune_techniques"
CONTEXT_BYTES = 0.55 * GIB


@dataclass(frozen=True)
class ReservedPeak:
    """Holds a row's reserved bytes beside those that nvidia-smi showed, and the bytes allocated at its peak as they are
    counted; ``counted_right`` says that those are right within 1 %, without which the allocator's say nothing."""

    line: int
    reserved_bytes: int
    shown_bytes: float
    counted_bytes: int
    counted_right: bool

    @property
    def log_error(self) -> float:
        return math.log(self.reserved_bytes / (self.shown_bytes - CONTEXT_BYTES))


def reserved_peaks() -> list[ReservedPeak]:
    """Reads what was traced."""
    known = {row.line: row for row in rows() if row.table == TABLE}
    with (FOLDER / RESERVED).open(encoding="utf-8", newline="") as file:
        return [
            ReservedPeak(
                int(line["line"]),
                int(line["reserved_bytes"]),
                float(line["shown_bytes"]),
                int(line["counted_bytes"]),
                abs(int(line["counted_bytes"]) / (known[int(line["line"])].peak_bytes or math.inf) - 1) < 0.01,
            )
            for line in csv.DictReader(file)
        ]


def wanted() -> list[tuple[PublishedRow, float]]:
    """Returns the first row of each model and technique, with the bytes that nvidia-smi showed."""
    lines = lines_of(TABLE)
    first: dict[tuple[str, int, str], tuple[PublishedRow, float]] = {}
    for row in rows():
        if row.table == TABLE and row.gpus == 1 and row.case is not None and row.peak_bytes:
            shown = lines[row.line - 2]["nvidia_smi_memory_mib"]
            if shown:
                first.setdefault((row.case.model, row.case.layers, row.technique), (row, float(shown) * 2**20))
    return list(first.values())


def _traced(row: PublishedRow) -> tuple[int, int]:
    """Returns the peak of allocated bytes of a whole step after a first one, and what is then reserved."""
    from research.published_steps import published_traces as traces
    from suite.measure.at_scale import weightless as values_of_sizes
    from suite.topics.modelled_time.reserved import AllocationOrder

    case = row.case
    assert case is not None
    importlib.import_module(f"transformers.models.{case.model}.modeling_{case.model}")
    with traces._restored(), ExitStack() as stack:
        stack.enter_context(traces.replaced(values_of_sizes, "LARGEST_KEPT", traces.LARGEST_POSITIONS))
        stack.enter_context(traces.weightless("cuda"))
        if case.repeated:
            from transformers.integrations import sdpa_attention

            stack.enter_context(traces.replaced(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False))
        model, parts, held = traces._prepared(case)
        for part in parts:
            part()
        with AllocationOrder().seed(model, *held) as order:
            for part in parts:
                part()
    return order.peak_bytes, order.reserved_bytes


def main() -> None:
    path = FOLDER / RESERVED
    known = {peak.line for peak in reserved_peaks()} if path.is_file() else set()
    if not known:
        path.write_text(",".join(COLUMNS) + "\n", "utf-8")
    for row, shown in wanted():
        if row.line not in known and row.case is not None:
            counted, reserved = _traced(row)
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(
                    (row.line, row.case.model, row.technique, counted, reserved, round(shown))
                )


if __name__ == "__main__":
    main()
