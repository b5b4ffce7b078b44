"""Describes the GPUs that a step time can be modelled for: what their makers say of them, and what was measured.

The table is ``devices.toml`` beside this module. Imports no torch.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

TABLE = Path(__file__).with_name("devices.toml")
HALF = frozenset({"float16", "bfloat16"})
NARROW_SHARE = 0.9
"""Of half precision's share of the peak, what eight bits reach where nobody measured it: five GPUs, 0.88 to 0.98."""
Kind = Literal["prior", "calibrated"]


@dataclass(frozen=True)
class Reached:
    """Holds the share of a peak that large operators reach: of tensor cores in half precision, of the float32 units, of
    the memory's bandwidth, of tensor cores in FP8 (0: nobody measured it). ``kind`` says whether it was measured on
    that GPU, ``source`` by whom."""

    half: float
    float32: float
    copy: float
    kind: Kind
    source: str
    float8: float = 0.0


def width_of(dtype: str) -> str:
    """Names the units of a type's products: half, float32, float8, or the type itself."""
    if dtype in HALF:
        return "half"
    return next((width for width in ("float32", "float8") if dtype.startswith(width)), dtype)


LANES: Mapping[str, int] = {
    "volta": 64,
    "pascal": 64,
    "turing": 64,
    "ampere": 64,
    "ampere, GA10x": 128,
    "ada": 128,
    "hopper": 128,
    "blackwell": 128,
    "blackwell, GB20x": 128,
}
"""What a multiprocessor computes in float32 at once, by generation (NVIDIA's papers on their architectures)."""


@dataclass(frozen=True)
class Gpu:
    """Describes a GPU. Rates are dense TFLOP/s, 0 where it has no such units; bandwidths GB/s, of 10^9 bytes.

    Attributes:
        half_tflops: of bfloat16 and float16 products that add up in float32.
        link_gb_s: of the link to the host's memory, one way.
        power_w, idle_w: of the board, at its limit and without work.
        kernel_us: from the end of a kernel to the next one's start, when it waits for the host no more.
        host: time of a host that goes with it, over that of :data:`suite.topics.modelled_time.roofline.HOST_US`.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    generation: str
    half_tflops: float
    tf32_tflops: float
    float32_tflops: float
    int8_tflops: float
    float8_tflops: float
    bandwidth_gb_s: float
    memory_gb: float
    link_gb_s: float
    power_w: float
    idle_w: float
    kernel_us: float
    host: float
    kind: Kind
    source: str
    date: date
    reached: Reached

    def product_flops_per_s(self, dtype: str, tf32: bool = False) -> float:
        """Returns what large products of that type reach. A type without units of its own is computed in the next
        wider."""
        shares = self.reached
        if dtype in HALF:
            return 1e12 * self.half_tflops * shares.half
        narrow = self._narrow_tflops(dtype)
        if narrow:
            measured = shares.float8 if width_of(dtype) == "float8" else 0.0
            return 1e12 * narrow * (measured or NARROW_SHARE * shares.half)
        if width_of(dtype) in ("int8", "float8"):
            return 1e12 * self.half_tflops * shares.half
        if tf32 and self.tf32_tflops:
            return 1e12 * self.tf32_tflops * 0.92 * shares.half
        return 1e12 * self.float32_tflops * shares.float32 * (0.5 if dtype == "float64" else 1.0)

    def peak_flops_per_s(self, dtype: str, tf32: bool = False) -> float:
        """Returns the datasheet's rate: what MFU is a share of."""
        narrow = self._narrow_tflops(dtype)
        if dtype in HALF or narrow:
            return 1e12 * (narrow or self.half_tflops)
        return 1e12 * (self.tf32_tflops if tf32 and self.tf32_tflops else self.float32_tflops)

    def _narrow_tflops(self, dtype: str) -> float:
        """Returns the datasheet's rate of eight bits; 0 for wider types, and without units of that type."""
        width = width_of(dtype)
        return self.float8_tflops if width == "float8" else self.int8_tflops if width == "int8" else 0.0

    @property
    def cycles_per_s(self) -> float:
        """Returns the cycles of all multiprocessors together; infinite where there are none of NVIDIA's."""
        lanes = LANES.get(self.generation)
        return 1e12 * self.float32_tflops / (2 * lanes) if lanes else math.inf

    @property
    def copy_bytes_per_s(self) -> float:
        """Returns what a large copy reaches, read and written bytes together."""
        return 1e9 * self.bandwidth_gb_s * self.reached.copy


def parsed(text: str) -> dict[str, Gpu]:
    """Returns GPUs by name. Raises ValueError for a table of another form."""
    try:
        listed = [_device(dict(table)) for table in tomllib.loads(text)["device"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a table of GPUs: {error}") from None
    for gpu in listed:
        if not min(gpu.half_tflops, gpu.float32_tflops, gpu.bandwidth_gb_s, gpu.link_gb_s, gpu.power_w) > 0:
            raise ValueError(f"{gpu.name}: rates, bandwidths and power are positive")
        if not all(0 < share <= 1 for share in (gpu.reached.half, gpu.reached.float32, gpu.reached.copy)):
            raise ValueError(f"{gpu.name}: what is reached is a share of the peak")
    return {device.name: device for device in listed}


def _device(table: dict[str, Any]) -> Gpu:
    reached = Reached(**table.pop("reached"))
    return Gpu(**{**table, "aliases": tuple(table["aliases"])}, reached=reached)


@cache
def devices() -> Mapping[str, Gpu]:
    """Returns all of the table, by name."""
    return parsed(TABLE.read_text("utf-8"))


def by_any_name() -> dict[str, Gpu]:
    """Returns all of the table, by name and by alias."""
    return {name: device for device in devices().values() for name in (device.name, *device.aliases)}
