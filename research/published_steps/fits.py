"""Tells whether a step fits a GPU's memory: counted bytes against configurations that ran, and against those that did
not.

A rank of a pipeline holds its weights, what its optimizer keeps of them, and the activations of as many micro batches
as there are stages from its own on. The stage that makes the logits is the traced one, but for the number of its
layers; the others are such layers. What torch's allocator reserves is more, by as much as for the fine-tuning steps
whose allocations are followed one by one (``reserved.csv``), which are none of these rows. Whether it *fits* is whether
what the fullest stage reserves is within the memory that a GPU gives. Nothing is fitted to the rows. A configuration
with no result need not have lacked memory: crashes and time limits look the same. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median

from research.published_steps.published_rows import PublishedRow, SharedMemory, StageMemory, Traced, rows, traces
from research.published_steps.reserved_peaks import reserved_peaks
from suite.topics.modelled_time.devices import Gpu, devices

GIVEN = 79.1 / 80 * 2**30 / 1e9
"""Of a GPU's named memory, in GB, what a process may hold: an H100 of 80 GB shows 79.1 GiB."""
WORKSPACE_BYTES = 2 * 2**30
"""Held by the CUDA context, NCCL's buffers and cuBLAS: a prior."""
WEIGHT_BYTES = 2
"""A parameter, in bfloat16."""


@dataclass(frozen=True)
class SharedPeak:
    """Holds a rank's bytes, of the fullest stage, beside the published peak: allocated, and ``reserved_bytes``. Whose
    peak a table has it does not say, nor which of both: where stages differ, it is near the fullest one's, and far from
    the last one's; and near what is reserved."""

    row: PublishedRow
    fullest_bytes: float
    reserved_bytes: float
    fits: bool

    @property
    def log_error(self) -> float | None:
        published = self.row.memory.reported_bytes if self.row.memory else None
        return math.log(self.reserved_bytes / published) if published else None


@cache
def reserved_over_allocated() -> float:
    """Returns what torch's allocator reserves over what is allocated: the median of the steps that are followed."""
    return median(peak.reserved_bytes / peak.counted_bytes for peak in reserved_peaks())


def shared_peak(row: PublishedRow, known: Traced, device: Gpu) -> SharedPeak:
    """Returns what the row's ranks hold."""
    memory = row.memory
    assert memory is not None
    fullest = max(_stage_bytes(stage, memory, known) for stage in memory.stages)
    available_bytes = 1e9 * device.memory_gb * GIVEN - WORKSPACE_BYTES
    reserved = fullest * reserved_over_allocated()
    return SharedPeak(row, fullest, reserved, reserved <= available_bytes)


def _stage_bytes(stage: StageMemory, memory: SharedMemory, known: Traced) -> float:
    """Returns the bytes that ranks of a stage hold. Where it has no head, its backward pass takes as much as one layer
    keeps: a prior."""
    states = stage.parameters * (memory.state_bytes + memory.shared_bytes / memory.shards)
    waiting = (stage.in_flight - 1) * stage.layers * known.layer_bytes
    if not stage.head:
        return states + waiting + WEIGHT_BYTES * stage.parameters + (stage.layers + 1) * known.layer_bytes
    further = stage.layers - memory.traced.layers, stage.parameters - memory.traced.parameters
    return states + waiting + known.peak_bytes + further[0] * known.layer_bytes + WEIGHT_BYTES * further[1]


def shared_peaks() -> list[SharedPeak]:
    """Returns all rows whose memory several ranks share, and that are traced."""
    rows_with_traces = ((row, traces().get(row.case.key)) for row in rows() if row.case is not None and row.memory)
    return [
        shared_peak(row, traced, devices()[row.device])
        for row, traced in rows_with_traces
        if traced and traced.peak_bytes
    ]


@dataclass(frozen=True)
class Confusion:
    """Counts configurations by what was said and what happened."""

    fits_ran: int
    fits_no_result: int
    too_large_ran: int
    too_large_no_result: int

    @property
    def right(self) -> float:
        """Returns the share of all that was said right."""
        return (self.fits_ran + self.too_large_no_result) / self.all

    @property
    def all(self) -> int:
        return self.fits_ran + self.fits_no_result + self.too_large_ran + self.too_large_no_result


def confusion(peaks: Iterable[SharedPeak]) -> Confusion:
    counts = {(fits, ran): 0 for fits in (True, False) for ran in (True, False)}
    for peak in peaks:
        assert peak.row.memory is not None
        counts[peak.fits, peak.row.memory.ran] += 1
    return Confusion(counts[True, True], counts[True, False], counts[False, True], counts[False, False])


def peak_errors(peaks: Iterable[SharedPeak]) -> list[float]:
    """Returns the logarithms of reserved over published peaks."""
    return [peak.log_error for peak in peaks if peak.log_error is not None]
