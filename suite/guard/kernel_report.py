"""Collects what `leantrain kernels` says of every kernel: whether it is right and within its budget, and how near its
floor.

Of each entry of a technique's ``MANIFESTS``, from what its ``peer.py`` declares (:mod:`suite.kernels.bench`):

    correct    one step against the float64 reference, on uneven sizes and at misaligned addresses: under Triton's
               interpreter without a GPU, as machine code on one
    gates      the code compiled for Hopper against the manifest's budget; needs no GPU
    floor      on a GPU: the bytes that must move over the copy bandwidth measured there, or the FLOPs over the rate of
               a matrix product, whichever takes longer, over the time measured
    peers      on a GPU: their time over the kernel's; other implementations of the same step on the same data
    launch     on a GPU: the host's time for a step over many tiny tensors
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from suite.entries.catalogue import Entry, catalogue, lookup
from suite.kernels import gates
from suite.kernels.bench import Examination, examinations
from suite.kernels.gates import MachineCode
from suite.kernels.manifest import Manifest
from suite.loop.technique import Unavailable
from suite.measure.provenance import Progress
from suite.process import programs

MOST_AT_ONCE = 4  # processes that examine side by side: each has torch and Triton


@dataclass(frozen=True)
class KernelRow:
    """Describes one kernel. ``violations`` is empty where it is right and within budget."""

    technique: str
    kernel: str
    examined: Examination | None
    code: MachineCode | None
    violations: tuple[str, ...]
    limit_per_element: float | None = None


def selected(ids: Sequence[str]) -> list[Entry]:
    """Returns the entries that have a ``kernel.py``: all, or those called ``ids``. Raises UnknownId."""
    having = {entry.id: entry for entry in catalogue().values() if (entry.folder / "kernel.py").is_file()}
    return [lookup("technique with a kernel", id, having) for id in ids] if ids else list(having.values())


def rows(entries: Sequence[Entry], device: str, timed: bool, progress: Progress) -> list[KernelRow]:
    """Returns a row for each of the entries' kernels; they are examined side by side unless they are ``timed``.

    Raises Unavailable where Triton is not installed.
    """
    if find_spec("triton") is None:
        raise Unavailable("Triton is not installed, or has no wheel for this platform: kernels cannot be examined")
    pool = ThreadPoolExecutor(1 if timed else min(MOST_AT_ONCE, os.cpu_count() or 1))
    try:
        with programs.ending_with():  # Ctrl-C and signals end what is examined now, too
            parts = pool.map(lambda entry: rows_of(entry, device, timed), entries)
            examined = []
            for number, (entry, part) in enumerate(zip(entries, parts, strict=True), 1):
                examined += part
                progress(number / len(entries), f"examined {entry.id}")
            return examined
    finally:
        pool.shutdown(cancel_futures=True)
        programs.begin_anew()


def rows_of(entry: Entry, device: str, timed: bool) -> list[KernelRow]:
    """Returns a row for each of the entry's kernels."""
    module, peer = (entry.module.removesuffix("technique") + name for name in ("kernel", "peer"))
    manifests: Mapping[str, Manifest] = import_module(module).MANIFESTS
    try:
        codes, uncompiled = gates.machine_code(module), ""
    except RuntimeError as error:
        codes, uncompiled = {}, str(error)
    examined, unexamined = _examined(entry, peer, device, timed)
    kernels = []
    for name, manifest in manifests.items():
        examination, code = examined.get(name.partition(":")[0]), codes.get(name)
        if examination:
            unseen = "" if name in examination.launched else f"its bench launches no kernel of this form: {UNSEEN}"
            violations = [examination.trouble or unseen]
        else:
            violations = [unexamined or f"{peer} has no bench for {name!r}: nothing checks it"]
        violations += gates.check(code, manifest.budget) if code else [uncompiled]
        limit = manifest.budget.instructions_per_element
        kernels.append(KernelRow(entry.id, name, examination, code, tuple(filter(None, violations)), limit))
    for name in examined.keys() - {name.partition(":")[0] for name in manifests}:
        violation = f"{module} has no manifest {name!r}: nothing gates it"
        kernels.append(KernelRow(entry.id, name, examined[name], None, (violation,)))
    return kernels


def _examined(entry: Entry, peer: str, device: str, timed: bool) -> tuple[Mapping[str, Examination], str]:
    """Returns the examinations by bench; and, where there are none, why."""
    if not (entry.folder / "peer.py").is_file():
        return {}, f"{entry.folder.name} has no peer.py with BENCHES: nothing checks it"
    try:
        return examinations(peer, device, timed), ""
    except RuntimeError as error:
        return {}, str(error)


UNSEEN = "nothing checks it"
CHECK_COLUMNS = (
    "kernel",
    "correct (rounding units)",
    "registers",
    "spills",
    "16-byte loads, stores",
    "instructions an element",
    "bytes an element",
)
TIME_COLUMNS = ("time", "of floor", "launch (host)", "peers' times")


def line(row: KernelRow, timed: bool) -> list[str]:
    """Returns the row's cells under ``CHECK_COLUMNS``, and ``TIME_COLUMNS`` if ``timed``."""
    examination, code = row.examined, row.code
    ran = examination is not None and row.kernel in examination.launched
    error = examination.error_units if examination is not None and ran else None
    limit = "" if row.limit_per_element is None else f" of {row.limit_per_element:.0f}"
    cells = [
        f"{row.technique}/{row.kernel}",
        "?" if examination is None or error is None else f"{error:.2g} of {examination.tolerance:g}",
        *(
            ["?"] * 4
            if code is None
            else [
                str(code.registers),
                str(code.spills),
                f"{code.load_widths.get(128, 0)}, {code.store_widths.get(128, 0)}",
                f"{code.instructions_per_element:.0f}{limit}",
            ]
        ),
        "?" if examination is None else f"{examination.bytes_per_element:g}",
    ]
    if timed:
        timing = examination.timing if examination else None
        if timing is None:
            return [*cells, *["?"] * len(TIME_COLUMNS)]
        launch = ", ".join(f"{seconds * 1e6:.0f} us for {count}" for count, seconds in timing.launch_s.items())
        peers = "; ".join(
            f"{name} {value:.2f}x" if isinstance(value, float) else f"{name} {value}"
            for name, value in timing.peers.items()
        )
        rate = f", {timing.flops_per_s / 1e12:.0f} TFLOP/s" if timing.flops_per_s else ""
        cells += [f"{timing.time_s * 1e3:.3f} ms{rate}", f"{100 * timing.floor_share:.1f} %", launch, peers or "none"]
    return cells
