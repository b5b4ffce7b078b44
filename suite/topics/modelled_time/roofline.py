"""Models a step's time on a named GPU, from the operators of a traced step: the roofline, and two timelines.

    an operator's time  =  max(FLOPs / rate, bytes / bandwidth)  +  kernels x gap
    the device's time   =  the sum over operators
    the host's time     =  what it takes to dispatch them, and a constant a step
    the step            =  the longest way through both

Williams et al., *Roofline* (CACM 2009) for the first line. The rate is what large products reach of the peak of their
type, less where rows are not aligned (:func:`product_s`). Attention has a rate by the generation of its kernel:
published shares of the peak differ by a factor of three between them. Memory-bound classes reach a share of what a copy
reaches, and no more bytes a cycle than a multiprocessor can move. Two timelines: the host runs ahead of the device,
through forward, backward and optimizer; where a step ends with a synchronisation, the device waits for the first launch
of the next.

    host    |forward dispatched|backward dispatched|optimizer|
    device     |forward ....................|backward ................|optimizer|

Energy: idle power for the whole step, and of what is above it a share for as long as each class of operators runs.

All of this is *modelled*. How far it can be believed is the study's to say
(:mod:`research.published_steps.published_fit`), which holds it against measured steps. Imports no torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suite.record.operator_counts import COLLECTIVE, HOST_ONLY, IN, NO_KERNEL, OUT, PHASES, Operator, Phase, TracedStep
from suite.topics.modelled_time.devices import HALF, Gpu, width_of
from suite.topics.modelled_time.gpu_links import CONTENDED, NODE, Sent
from suite.topics.modelled_time.modelled import KERNELS, PRECISION, RANKS, RANKS_ACROSS, RUNS, SHAPES, Change

Floats = NDArray[np.float64]

HOST_US: Mapping[Phase, tuple[float, float]] = {"forward": (11, 3), "backward": (7, 2), "optimizer": (6, 1.5)}
"""What the host takes for an operator that launches, and for a view, by phase: eager torch 2, a server's CPU."""
COMPILED_LAUNCH_US = 5.0
MORE_KERNELS_US, MORE_TENSORS_US = 3.0, 0.25
"""For each kernel of an operator beyond its first, and each tensor of a foreach operator beyond its eighth."""

SHARES: Mapping[str, float] = {
    "pointwise": 0.95,
    "copy": 0.90,
    "cast": 0.95,
    "transposing copy": 0.75,
    "reduction": 0.80,
    "norm": 0.80,
    "softmax": 0.80,
    "random": 0.85,
    "index": 0.50,
    "sort": 0.08,
    "optimizer": 0.90,
    "loss": 0.70,
    "fused": 0.90,
    "product": 0.90,
    "attention": 0.90,
    "convolution": 0.90,
    "other": 0.60,
}
"""Of a copy's bandwidth, by class."""
PER_CYCLE: Mapping[str, float] = {
    "cast": 8.23,
    "copy": 13.55,
    "index": 6.54,
    "loss": 7.35,
    "norm": 6.85,
    "optimizer": 11.18,
    "random": 8.05,
    "reduction": 11.28,
    "softmax": 9.74,
    "transposing copy": 2.29,
}
"""Bytes that a multiprocessor moves in a cycle at most, of classes that fall short of their share of a copy on an H200,
whose memory outruns what computes, gathers and scatters: medians of its operators of 64 MB and more."""

ATTENTION: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "efficient": {"volta": (0.30, 0.20), "hopper": (0.25, 0.18), "": (0.40, 0.28)},
    "flash 1": {"hopper": (0.28, 0.20), "": (0.45, 0.33)},
    "flash 2": {
        "hopper": (0.36, 0.30),
        "blackwell": (0.20, 0.16),
        "ada": (0.90, 0.70),
        "blackwell, GB20x": (0.85, 0.66),
        "cdna3": (0.25, 0.18),
        "": (0.60, 0.50),
    },
    "flash 3": {"hopper": (0.62, 0.50), "blackwell": (0.40, 0.32), "": (0.60, 0.50)},
}
"""Share of the half peak that fused attention reaches on long sequences, forward and backward, by the generation of
its kernel and of the GPU (FlashAttention-2, 2307.08691, section 4; FlashAttention-3, 2407.08608, section 4). Ada: an
RTX 4090's 169 and 125 TFLOP/s (apache/tvm tl_doc/flash_perf.md), GB20x: an RTX 5090's 0.89 forward, backward as Ada;
cdna3: an MI300X's 329 TFLOP/s (samuel-bohman/AI-benchmarking-guide Azure_Results), backward as Hopper (all read
2026-11-28)."""
SHORT_ROWS = 150
"""Keys at which a fused attention takes twice the time of its rate; twice as many under a causal mask."""
UNALIGNED = 0.6
"""Of the rate, where a half-precision product's rows are not aligned; compiled code pads them."""
SMALL = 0.35
"""Of the peak, for convolutions and what has FLOPs and no class of its own."""

ACTIVITY: Mapping[str, float] = {"product": 1.0, "attention": 1.0, "convolution": 1.0}
MOVING, WAITING = 0.70, 0.15
"""Share of the power above idle: of operators that compute (the table), of those that move bytes, of waiting."""


@dataclass(frozen=True)
class Software:
    """Describes what runs on the device besides the model's own operators.

    Attributes:
        attention: the generation of the kernel behind torch's flash attention: a key of :data:`ATTENTION`.
        attention_share: what multiplies its rate.
        tf32: whether float32 products run as TF32.
        host: the host's time over that of HOST_US: an older processor, another torch.
        step_s: what each step takes besides its operators: logging, data, the allocator.
        synchronised: whether a step ends by waiting for the device.
    """

    name: str = "torch 2, eager attention by flash 2"
    attention: str = "flash 2"
    attention_share: float = 1.0
    tf32: bool = False
    host: float = 1.0
    step_s: float = 0.0
    synchronised: bool = False


DEFAULT = Software()


@dataclass(frozen=True)
class Parts:
    """Holds a step's operators that launch, as arrays of s: all their calls together. What moves bytes takes the longer
    of its time by the memory and of that by the multiprocessors' cycles."""

    operators: list[Operator]
    computed_s: Floats
    moved_s: Floats
    in_cycles_s: Floats
    gaps_s: Floats
    phases: NDArray[np.intp]
    host: Mapping[Phase, float]


@dataclass(frozen=True)
class Cost:
    """Says what one call of an operator takes on the device: time, and what bounds it: compute, memory or launch."""

    seconds: float
    bound: str


def operator_cost(device: Gpu, operator: Operator, software: Software = DEFAULT) -> Cost:
    """Returns what one call takes on the device, in s; transfers go by :func:`link_s`."""
    moved_s = max(_moved_s(device, operator), _in_cycles_s(device, operator))
    computed_s = _computed_s(device, operator, software)
    gaps_s = 1e-6 * device.kernel_us * operator.kernels
    bound = "compute" if computed_s >= moved_s else "memory"
    return Cost(max(moved_s, computed_s) + gaps_s, bound if max(moved_s, computed_s) >= gaps_s else "launch")


def parts_of(step: TracedStep, device: Gpu, software: Software = DEFAULT) -> Parts:
    """Returns the terms of :func:`operator_cost`, of all calls of each signature: what a fit multiplies."""
    host = dict.fromkeys(PHASES, 0.0)
    launched = []
    for operator, count in step:
        host[operator.phase] += count * host_s(device, operator, software)
        if operator.kind not in NO_KERNEL:
            launched.append((operator, count))
    counts = np.array([float(count) for _, count in launched])
    return Parts(
        [launch for launch, _ in launched],
        counts * [_computed_s(device, launch, software) for launch, _ in launched],
        counts * [_moved_s(device, launch) for launch, _ in launched],
        counts * [_in_cycles_s(device, launch) for launch, _ in launched],
        counts * [1e-6 * device.kernel_us * launch.kernels for launch, _ in launched],
        np.array([PHASES.index(launch.phase) for launch, _ in launched], dtype=np.intp),
        host,
    )


def _moved_s(device: Gpu, operator: Operator) -> float:
    return operator.moved_bytes / (device.copy_bytes_per_s * SHARES.get(operator.kind, SHARES["other"]))


def _in_cycles_s(device: Gpu, operator: Operator) -> float:
    return operator.moved_bytes / (PER_CYCLE.get(operator.kind, math.inf) * device.cycles_per_s)


def _computed_s(device: Gpu, operator: Operator, software: Software) -> float:
    if operator.kind == "product" and operator.product:
        return product_s(device, operator, software)
    if operator.kind == "attention":
        return attention_s(device, operator, software)
    if operator.kind == "convolution" and _of_points(operator):
        return product_s(device, operator, software)
    return operator.flops / (SMALL * device.peak_flops_per_s(operator.dtype, software.tf32))


def _of_points(operator: Operator) -> bool:
    """Tells whether a convolution is a matrix product: of single points, and of all channels."""
    backward = "backward" in operator.name
    shapes = operator.shapes[backward : backward + 2]  # the input and the weight
    return len(shapes) == 2 and len(shapes[1]) == 4 and shapes[1][2:] == (1, 1) and shapes[0][1] == shapes[1][1]


def product_s(device: Gpu, operator: Operator, software: Software = DEFAULT) -> float:
    """Returns the time of a matrix product: its FLOPs at the rate of large ones."""
    rate = device.product_flops_per_s(operator.dtype, software.tf32)
    if operator.dtype in HALF and not operator.aligned and not operator.compiled:
        rate *= UNALIGNED
    return operator.flops / rate


def attention_s(device: Gpu, operator: Operator, software: Software = DEFAULT) -> float:
    """Returns the time of fused attention at the rate of its kernel's generation; what a causal mask hides is
    skipped."""
    generation = software.attention if "flash" in operator.name or "cudnn" in operator.name else "efficient"
    shares = ATTENTION[generation]
    share = shares.get(device.generation, shares[""])[operator.backward_of_attention] * software.attention_share
    peak = device.peak_flops_per_s(operator.dtype)
    keys = operator.shapes[1 + operator.backward_of_attention][-2]  # after queries, and after the output's gradient
    short = 1 + SHORT_ROWS * (1 + operator.causal) / max(keys, 1)
    return operator.flops * (0.5 if operator.causal else 1.0) * short / (share * peak)


def host_s(device: Gpu, operator: Operator, software: Software = DEFAULT) -> float:
    """Returns what the host takes to dispatch one call, in s."""
    launch_us, view_us = HOST_US[operator.phase]
    if operator.kind == COLLECTIVE:
        us = 0.0  # asking for it is told apart: suite.topics.modelled_time.gpu_links
    elif operator.kind == HOST_ONLY:
        us = 0.0 if operator.compiled else view_us
    elif operator.kind in (OUT, IN):
        us = 15.0
    elif operator.compiled:
        us = COMPILED_LAUNCH_US
    else:
        more = max(0, operator.tensors - 8) if operator.kind == "optimizer" else 0
        us = launch_us + MORE_TENSORS_US * more + MORE_KERNELS_US * max(0, operator.kernels - 1)
    return 1e-6 * us * device.host * software.host


@dataclass(frozen=True)
class ModelledStep:
    """Describes a step as the model has it; times in s, energy in J. Modelled, never measured.

    Attributes:
        step_s: the longest way through host, device and link.
        device_s, host_s, link_s: that each is busy.
        beside_s, waited_s: of what ranks send one another: what runs beside operators, and what the step waits for.
        by_kind: the device's time by class of operator, largest first.
        bound_by: for each class what bounds most of its time: compute, memory or launch.
        flops: that ran, by the papers' convention.
        mfu: of the peak of the type that most FLOPs have; what is computed again counts.
        energy_j: of the board.
        limit: what the step waits for: device, host or link.
    """

    step_s: float
    device_s: float
    host_s: float
    link_s: float
    flops: float
    mfu: float
    energy_j: float
    limit: str
    beside_s: float = 0.0
    waited_s: float = 0.0
    by_kind: Mapping[str, float] = field(default_factory=dict)
    bound_by: Mapping[str, str] = field(default_factory=dict)


def modelled(step: TracedStep, device: Gpu, software: Software = DEFAULT, between: Sent | None = None) -> ModelledStep:
    """Models the step on that device under that software, with what it sends between ranks. Raises ValueError where
    something in it has no declared cost, for one of several ranks without what they send, and for products in FP8 on a
    GPU that has no units for them."""
    if step.undeclared:
        raise ValueError("; ".join(step.undeclared))
    if not device.float8_tflops and width_of(widest(step, products_alone=True)) == "float8":
        raise ValueError(f"{device.title} has no units for products in FP8: take a GPU from Ada or Hopper on")
    if step.ranks > 1 and between is None:
        raise ValueError(f"it trains on {step.ranks} ranks, and what they send one another is not given")
    kinds: dict[str, float] = defaultdict(float)
    bounds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    busy, dispatched, link = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0), defaultdict[str, float](float)
    total, active_s = 0.0, 0.0
    for operator, count in step:
        dispatched[operator.phase] += count * host_s(device, operator, software)
        if operator.kind in (OUT, IN):
            link[operator.kind] += count * operator.moved_bytes / (1e9 * device.link_gb_s)
        elif operator.kind not in NO_KERNEL:
            cost = operator_cost(device, operator, software)
            seconds = count * cost.seconds
            busy[operator.phase] += seconds
            kinds[operator.kind] += seconds
            bounds[operator.kind][cost.bound] += seconds
            total += count * operator.flops
            active_s += seconds * (ACTIVITY.get(operator.kind, MOVING) if cost.bound == "compute" else MOVING)
    link_s = max(link.values(), default=0.0)
    beside_s = waited_s = 0.0
    for phase in PHASES if between else ():
        assert between is not None
        hidden_s, waits_s = (
            sum(way[phase, across] for across in (False, True)) for way in (between.hidden, between.waited)
        )
        waits_s += between.met[phase]
        busy[phase] = float(beside(busy[phase], hidden_s)) + waits_s
        dispatched[phase] += between.asked[phase]
        beside_s, waited_s = beside_s + hidden_s, waited_s + waits_s
    step_s = software.step_s + max(timeline(dispatched, busy, software.synchronised), link_s)
    device_s, sent_s = sum(busy.values()), sum(dispatched.values())
    power_w = device.power_w - device.idle_w
    energy_j = device.idle_w * step_s + power_w * (active_s + WAITING * max(0.0, step_s - sum(kinds.values())))
    return ModelledStep(
        step_s,
        device_s,
        sent_s,
        link_s,
        total,
        total / step_s / device.peak_flops_per_s(widest(step), software.tf32) if step_s else math.nan,
        energy_j,
        _limit(device_s, sent_s, link_s),
        beside_s,
        waited_s,
        dict(sorted(kinds.items(), key=lambda item: -item[1])),
        {kind: max(by_bound, key=lambda bound: by_bound[bound]) for kind, by_bound in bounds.items()},
    )


def beside(busy_s: Floats | float, hidden_s: Floats | float) -> Floats:
    """Returns what operators and the collectives beside them take together: the longer, and what each costs the
    other."""
    together: Floats = np.maximum(busy_s, hidden_s) + CONTENDED * np.minimum(busy_s, hidden_s)
    return together


def timeline(host: Mapping[Phase, float], device: Mapping[Phase, float], synchronised: bool) -> float:
    """Returns the step's time from both timelines' busy times by phase.

    A host that runs on through the step's end hides behind a slower device, and hides it if it is the slower one. After
    a synchronisation the device cannot begin a phase before the host has: the longest way changes from the host's line
    to the device's once, at the begin of a phase or at the end.
    """
    if not synchronised:
        return max(sum(host.values()), sum(device.values()))
    ways = [
        sum(host[phase] for phase in PHASES[:at]) + sum(device[phase] for phase in PHASES[at:])
        for at in range(len(PHASES) + 1)
    ]
    return max(ways)


def widest(step: TracedStep, products_alone: bool = False) -> str:
    """Returns the type of operands that most FLOPs have, or most FLOPs of products."""
    flops: dict[str, float] = defaultdict(float)
    for operator, count in step:
        if operator.kind == "product" or not products_alone:
            flops[operator.dtype] += count * operator.flops
    return max(flops, key=lambda dtype: flops[dtype], default="float32")


def _limit(device_s: float, host_s: float, link_s: float) -> str:
    return max((device_s, "device"), (host_s, "host"), (link_s, "link"))[1]


def change_between(a: TracedStep, b: TracedStep) -> Change:
    """Returns what two steps differ in, the gravest: what ranks send one another; the types of their products; their
    compilation, or the kernels of attention, norms and losses; the products' shapes, or what is trained; or how often
    equal ones run."""

    def types(step: TracedStep) -> set[str]:
        products = [operator for operator, _ in step if operator.kind == "product"]
        largest = max((product.flops for product in products), default=0)
        return {product.dtype for product in products if product.flops > 0.01 * largest}

    def kernels(step: TracedStep) -> set[tuple[str, bool]]:
        return {
            (operator.name, operator.compiled)
            for operator, _ in step
            if operator.kind in ("attention", "softmax", "norm", "loss", "fused")
        }

    def shapes(step: TracedStep) -> set[object]:
        return {operator.product for operator, _ in step if operator.kind == "product"}

    def collectives(step: TracedStep) -> set[Operator]:
        return {operator for operator, _ in step if operator.kind == COLLECTIVE}

    if (a.ranks, collectives(a)) != (b.ranks, collectives(b)):
        return RANKS if max(a.ranks, b.ranks) <= NODE else RANKS_ACROSS
    if types(a) != types(b):
        return PRECISION
    if kernels(a) != kernels(b):
        return KERNELS
    return RUNS if shapes(a) == shapes(b) else SHAPES
