"""Says how far a modelled step time is believed, and what was fitted to published steps.

``modelled.json`` beside this module has it. The study
(:mod:`research.published_steps.published_tables`) writes it. No torch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from suite.record.files import Stored, parse_versioned, read_plain, write_json
from suite.topics.modelled_time.devices import Gpu, width_of
from suite.topics.modelled_time.gpu_links import NODE, NODES, Fabric

PATH = Path(__file__).with_name("modelled.json")
SCHEMA = 1
Change = Literal[
    "the number of runs of equal operators",
    "shapes or what is trained",
    "compilation or kernels",
    "precision",
    "what ranks of a node send one another",
    "what ranks of several nodes send one another",
]
RUNS: Change = "the number of runs of equal operators"
SHAPES: Change = "shapes or what is trained"
KERNELS: Change = "compilation or kernels"
PRECISION: Change = "precision"
RANKS: Change = "what ranks of a node send one another"
RANKS_ACROSS: Change = "what ranks of several nodes send one another"
OF_ONE_GPU: tuple[Change, ...] = (RUNS, SHAPES, KERNELS, PRECISION)
TIME = "time"
TIME_IN_A_NODE = "time of several GPUs of a node"
TIME_ACROSS_NODES = f"time of 2 to {NODES} nodes"
TIME_FAR = f"time of more than {NODES} nodes"
UNSEEN = " on a GPU without rows"
"""Of a band's name: of a GPU of which no published step is known, in the type of the step's products."""
IN_FP8 = " with products in FP8"
"""Of a band's name: where most FLOPs of products have operands of eight floating bits."""
PROVENANCE = "modelled"
UNKNOWN_HALF_WIDTH = 0.35
"""Where no study gives a band."""
WIDEST = 1.0
"""A band beyond a factor of two either way says nothing of a step: there is none."""


def time_on(ranks: int, node: int = NODE, dtype: str = "") -> str:
    """Names the band of a step's time on so many GPUs, ``node`` of which links join, with products of that type."""
    if ranks > node * NODES:
        return TIME_FAR
    where = TIME if ranks <= 1 else TIME_IN_A_NODE if ranks <= node else TIME_ACROSS_NODES
    return where + IN_FP8 * (width_of(dtype) == "float8")


class Band(NamedTuple):
    """Holds a band's ``half_width``: 0.2 is from a factor of 1/1.2 to one of 1.2; of so many residuals, of so many
    sources."""

    half_width: float
    residuals: int
    sources: int


class Believed(Stored):
    """Holds ``bands`` by kind of change, and of a step's time; ``no_bands``: why others have none, of which those of
    ``too_wide`` say nothing of a step; ``multipliers``: logarithms by name (of a step's own time, s); ``rows``,
    ``sources``: that they come from."""

    schema_version: int = SCHEMA
    bands: dict[str, Band] = Field(default_factory=dict)
    no_bands: dict[str, str] = Field(default_factory=dict)
    too_wide: list[str] = Field(default_factory=list)
    multipliers: dict[str, float] = Field(default_factory=dict)
    rows: int = 0
    sources: list[str] = Field(default_factory=list)

    def band(self, change: str) -> Band | None:
        """Returns the band of a kind of change, or of a time: a guess where too few published ones say one, None where
        they say that it is too wide."""
        if change in self.too_wide:
            return None
        return self.bands.get(change, Band(UNKNOWN_HALF_WIDTH, 0, 0))

    def has_rows(self, device: Gpu, dtype: str) -> bool:
        """Tells whether published steps were on that GPU, with products as wide."""
        return f"product {device.generation} {width_of(dtype)} {device.name}" in self.multipliers

    def calibrated(self, device: Gpu) -> Gpu:
        """Returns the GPU with what published steps say of it, or of its generation."""
        reached, generation, name = device.reached, device.generation, device.name

        def product(width: str) -> float:
            all_levels = (f"product {width}", f"product {generation} {width}", f"product {generation} {width} {name}")
            return exp(sum(self.multipliers.get(level, 0.0) for level in all_levels))

        own = any(key.endswith(f" {name}") for key in self.multipliers)
        return replace(
            device,
            reached=replace(
                reached,
                half=min(1.0, reached.half * product("half")),
                float32=min(1.0, reached.float32 * product("float32")),
                float8=min(1.0, reached.float8 * product("float8")),
                copy=min(1.0, reached.copy * exp(self.multipliers.get(f"moving {generation}", 0.0))),
                kind="calibrated" if own else reached.kind,
                source="published steps" if own else reached.source,
            ),
        )

    def linked(self, fabric: Fabric) -> Fabric:
        """Returns the links with what published steps say of them."""

        def times(name: str) -> float:
            return exp(self.multipliers.get(name, 0.0))

        return replace(
            fabric,
            inside_gb_s=fabric.inside_gb_s * times("link inside"),
            across_gb_s=fabric.across_gb_s * times("link across"),
            meet_us=fabric.meet_us / times("link meeting"),
        )

    def attention(self, kernel: str, device: Gpu) -> float:
        """Returns what multiplies the rate of a generation of attention kernels there."""
        both = ("attention any", f"attention {kernel} {device.generation}")
        return exp(sum(self.multipliers.get(name, 0.0) for name in both))


@cache
def believed() -> Believed:
    """Reads what ships with the package."""
    try:
        return parse_versioned(read_plain(PATH), Believed, SCHEMA)
    except FileNotFoundError:
        return Believed()


def write(known: Believed, path: Path = PATH) -> None:
    write_json(known, path)
    believed.cache_clear()
