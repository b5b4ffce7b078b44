"""Compares the bound that memory bandwidth sets to OuterSPACE with the times that its paper reports, and its algorithm
here.

``headlines``: the paper's speed-ups, and what stands beside them. ``bound``: the paper's five uniform matrices; bytes
and seconds by ``traffic.py``, the reported time, and their ratio,
which nothing here was fitted to close. ``traffic``: where the bytes go. ``numbers``: what is quoted, what the
same memory allows Gustavson's order without a cache, and what libraries and the same products, expanded, sorted and
compressed, take on this machine for the first of these matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from scipy.sparse import csr_array

from suite.measure.exact import one_thread
from suite.topics.studies.lab import Lab, StudyTable
from techniques.shared.chips.headlines import Beside, between, headlines
from techniques.shared.chips.model import chips
from techniques.shared.chips.numbers import Number, numbers, quoted
from techniques.sparse_matmul.outerspace.probes import REPORTED
from techniques.sparse_matmul.outerspace.traffic import BANDWIDTH, ELEMENT_BYTES, bound_s, traffic_bytes, uniform
from techniques.sparse_matmul.shared.dataflows import csr, expanded

TURNS = 3
NOTE = "Modelled: 128 GiB/s and nothing else; reported times as digitised by TeAAL's authors (MICRO 2023)"
MEMORIES = {
    "against_mkl": ("a Xeon of 76.8 GB/s (from memory)", 76.8e9),
    "against_cusparse": ("a K40 of 288 GB/s (from memory)", 288e9),
    "against_cusp": ("a K40 of 288 GB/s (from memory)", 288e9),
}
"""What the paper compared with, and the bytes a second of its memory."""


def study(lab: Lab) -> list[StudyTable]:
    """Makes the tables ``headlines``, ``numbers``, ``bound`` and ``traffic``; nothing is recorded."""
    lab.progress(0.0, "modelling memory traffic")
    bounds, shares = [], []
    for rows, density, seconds in REPORTED:
        entries, products, result = uniform(rows, density)
        moved = traffic_bytes(rows, entries, entries, products, result)
        bound = bound_s(rows, density)
        bounds.append((rows, density, moved, bound, seconds, seconds / bound))
        parts = (2 * entries, 2 * products, result)
        shares.append((rows, density, *(ELEMENT_BYTES * part / moved for part in parts)))
    folder, here = Path(__file__).parent, measured()
    return [
        headlines(folder, beside(here)),
        numbers([*quoted(folder), *modelled(), *here]),
        StudyTable("bound", ("rows", "density", "bytes", "bound_s", "reported_s", "reported_over_bound"), bounds, NOTE),
        StudyTable(
            "traffic", ("rows", "density", "operands", "products", "result"), shares, "Shares of the modelled bytes"
        ),
    ]


def gustavson_s(rows: int, density: float, bandwidth: float) -> float:
    """Computes the bound of Gustavson's order, which reads a row of B for each entry of A; pointers are left out."""
    entries, products, result = uniform(rows, density)
    return ELEMENT_BYTES * (entries + products + result) / bandwidth


def beside(here: list[Number]) -> dict[str, Beside]:
    """Returns what stands beside the headlines: what the memories' bandwidths alone allow, and the outer products
    here."""
    values = {}
    for claim, (name, bandwidth) in MEMORIES.items():
        ratios = [gustavson_s(rows, density, bandwidth) / bound_s(rows, density) for rows, density, _ in REPORTED]
        of = f"memories' bandwidths alone, on five uniform matrices; over Gustavson's order without a cache on {name}"
        _, mkl, outer = (result.speedup or 0.0 for result in here)
        on_cpu = claim == "against_mkl"
        values[claim] = Beside(
            between(ratios, of),
            outer / mkl if on_cpu else None,
            f"{here[2].what}, over {here[1].what} on this machine, one thread" if on_cpu else "",
            None,
            None,
            "drift: the library's own times of the paper are not known here" + ("" if on_cpu else "; measured: no GPU"),
        )
    return values


def modelled() -> list[Number]:
    """Computes the bound of each matrix beside that of Gustavson's order."""
    title, bounds = chips()["outerspace"].title, []
    for rows, density, _ in REPORTED:
        inputs = f"{rows} rows, density {density:g}; bytes over 128 GiB/s, pointers of the other left out"
        against = "Gustavson's order on the same memory, without a cache"
        ratio = gustavson_s(rows, density, BANDWIDTH) / bound_s(rows, density)
        bounds.append(Number("modelled", title, against, ratio, "closed form", inputs))
    return bounds


def measured() -> list[Number]:
    """Times squares of a matrix like the paper's first, float64, in one thread, turn by turn."""
    rows, density, _ = REPORTED[0]
    random = torch.Generator().manual_seed(rows)
    places = torch.randint(rows * rows, (round(rows * rows * density),), generator=random).unique()
    starts = torch.zeros(rows + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(places // rows, minlength=rows).cumsum(0)
    values = torch.randn(len(places), generator=random, dtype=torch.float64)
    sparse = csr(starts, places % rows, values, (rows, rows))
    theirs = csr_array((values.numpy(), (places % rows).numpy(), starts.numpy()), shape=(rows, rows))
    ways: dict[str, Callable[[], object]] = {
        "scipy": lambda: theirs @ theirs,
        "MKL (torch CSR)": lambda: sparse @ sparse,
        "outer products, expanded, sorted and compressed": lambda: expanded(sparse, sparse),
    }
    with one_thread():
        turns = [[_seconds(way) for way in ways.values()] for _ in range(TURNS + 1)][1:]
    against, inputs = "scipy on this machine, one thread", f"{rows} rows, density {density:g}, uniform"
    return [
        Number("measured", name, against, median(turn[0] / turn[n] for turn in turns), "", inputs)
        for n, name in enumerate(ways)
    ]


def _seconds(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start
