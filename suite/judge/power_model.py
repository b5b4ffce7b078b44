"""Models a processor's power, for machines without an energy counter.

    energy = (idle watts x threads held x wall seconds) + (busy watts - idle watts) x processor seconds

Watts are of one hardware thread of a server, idle and at full load, memory and losses left out: means over the
SPECpower_ssj2008 results of an architecture, as the Cloud Carbon Footprint project computed them and Kepler ships them
(sustainable-computing-io/kepler, data/power_data.csv). Two runs on one machine share the watts, so their ratio depends
on the ratio of busy to idle alone. What it cannot see: clock frequencies, vector units, the memory's own power.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Watts:
    """Holds the power of one hardware thread."""

    architecture: str
    idle: float
    busy: float


KNOWN = {  # by a word of the processor's name
    "epyc": Watts("AMD EPYC, 2nd generation", 0.474, 1.693),
    "xeon": Watts("Intel Cascade Lake", 0.639, 3.967),
    "graviton": Watts("Graviton 2", 0.474, 1.693),
    "neoverse": Watts("Graviton 2", 0.474, 1.693),
}


def watts_of(processor: str) -> Watts:
    """Returns the power model of a processor's class. Raises ValueError where there is no model of it."""
    for word, watts in KNOWN.items():
        if word in processor.lower():
            return watts
    raise ValueError(f"no power model of the processor {processor or 'unknown'}")


def joules(watts: Watts, wall_s: float, processor_s: float, threads: int) -> float:
    """Returns the energy of a run that held ``threads`` hardware threads."""
    return watts.idle * threads * wall_s + (watts.busy - watts.idle) * processor_s
