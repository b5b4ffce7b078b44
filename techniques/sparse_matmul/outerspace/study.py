"""The bound that memory bandwidth sets to OuterSPACE, beside the times that its paper reports: modelled, no run.

``bound``: the paper's five uniform matrices; bytes and seconds by ``traffic.py``, the reported time, and their ratio,
which nothing here was fitted to close. ``traffic``: where the bytes go.
"""

from __future__ import annotations

from suite.measure.lab import Lab, StudyTable
from techniques.sparse_matmul.outerspace.probes import REPORTED
from techniques.sparse_matmul.outerspace.traffic import ELEMENT_BYTES, bound_s, traffic_bytes, uniform

NOTE = "Modelled: 128 GiB/s and nothing else; reported times as digitised by TeAAL's authors (MICRO 2023)"


def study(lab: Lab) -> list[StudyTable]:
    """The tables ``bound`` and ``traffic``; nothing is recorded."""
    lab.progress(0.0, "modelling memory traffic")
    bounds, shares = [], []
    for rows, density, seconds in REPORTED:
        entries, products, result = uniform(rows, density)
        moved = traffic_bytes(rows, entries, entries, products, result)
        bound = bound_s(rows, density)
        bounds.append((rows, density, moved, bound, seconds, seconds / bound))
        parts = (2 * entries, 2 * products, result)
        shares.append((rows, density, *(ELEMENT_BYTES * part / moved for part in parts)))
    return [
        StudyTable("bound", ("rows", "density", "bytes", "bound_s", "reported_s", "reported_over_bound"), bounds, NOTE),
        StudyTable(
            "traffic", ("rows", "density", "operands", "products", "result"), shares, "Shares of the modelled bytes"
        ),
    ]
