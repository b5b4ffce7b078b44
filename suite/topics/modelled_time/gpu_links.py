"""Tells what GPUs send one another in a step, and how long that takes: latency and bytes over bandwidth, by ring.

    all-gather, reduce-scatter   (p - 1) hops  +  (p - 1) / p x bytes / bandwidth
    all-reduce                   both
    send                         one hop  +  bytes / bandwidth

(Thakur et al., *Optimization of Collective Communication Operations in MPICH*, 2005, section 4; hops of a long ring go
up a tree, so their number grows with the logarithm above a node.) A group inside a node uses its links; one that
crosses nodes is as slow as the network cards that it has: a node's cards are shared by the groups that cross there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Literal

from suite.record.operator_counts import PHASES, Phase

Name = Literal["all-gather", "reduce-scatter", "all-reduce", "send"]
NODE = 8
"""GPUs of a node."""
REACHED_INSIDE, REACHED_ACROSS = 0.78, 0.70
"""Share of a datasheet's bandwidth that large collectives reach: priors, as NCCL's tests have them."""
CONTENDED = 0.15
"""What beside a collective is slower by: NCCL's kernels occupy 16 of an A100's 108 multiprocessors."""
HOST_US = 30.0
"""What the host takes to ask for one."""


@dataclass(frozen=True)
class Fabric:
    """Describes the links of a cluster's GPUs. Bandwidths are the datasheets', GB/s one way, of each GPU; hops in
    us."""

    inside_gb_s: float
    across_gb_s: float
    source: str
    inside_us: float = 4.0
    across_us: float = 15.0


FABRICS: Mapping[str, Fabric] = {
    "A100": Fabric(300, 25, "NVIDIA A100 datasheet; 1600 Gbit/s a node, RoCE, llm-foundry's README"),
    "H100": Fabric(450, 50, "NVIDIA H100 datasheet; 3200 Gbit/s a node"),
    "PCIe": Fabric(24, 12, "PCIe 4.0, 16 lanes"),
}


@dataclass(frozen=True)
class Collective:
    """Describes one of a step's collectives, as often as it runs.

    Attributes:
        nbytes: of the whole tensor, on one rank after an all-gather or before a reduce-scatter.
        ranks, stride: of its group: how many, and how far apart neighbours are among all ranks.
        times: a step.
        hidden: whether it runs beside its phase's operators; else they wait for it.
    """

    name: Name
    phase: Phase
    nbytes: float
    ranks: int
    stride: int = 1
    times: float = 1
    hidden: bool = True

    @property
    def crosses_nodes(self) -> bool:
        return self.ranks * self.stride > NODE


def seconds(collective: Collective, fabric: Fabric) -> float:
    """Returns what one of them takes, in s."""
    ranks = collective.ranks
    if ranks < 2:
        return 0.0
    here = max(1, min(ranks, NODE // collective.stride))  # ranks of the group in a node
    bandwidth, hop_us = 1e9 * fabric.inside_gb_s * REACHED_INSIDE, fabric.inside_us
    hops: float = ranks - 1
    if collective.crosses_nodes:
        bandwidth = min(bandwidth, 1e9 * fabric.across_gb_s * here * REACHED_ACROSS)
        hop_us = fabric.across_us
        hops = log2(ranks)
    if collective.name == "send":
        return 1e-6 * hop_us + collective.nbytes / bandwidth
    once = 1e-6 * hop_us * hops + collective.nbytes * (ranks - 1) / ranks / bandwidth
    return 2 * once if collective.name == "all-reduce" else once


@dataclass(frozen=True)
class Sent:
    """Holds a step's time on its links by phase, s: beside its operators, and while they wait; inside nodes and across
    (True). And what its host takes to ask for all."""

    hidden: Mapping[tuple[Phase, bool], float]
    waited: Mapping[tuple[Phase, bool], float]
    asked: Mapping[Phase, float]


def sent(collectives: Iterable[Collective], fabric: Fabric) -> Sent:
    """Adds up all of a step's, by phase and by whether they cross nodes."""
    hidden, waited = ({(phase, across): 0.0 for phase in PHASES for across in (False, True)} for _ in range(2))
    asked = dict.fromkeys(PHASES, 0.0)
    for collective in collectives:
        asked[collective.phase] += collective.times * 1e-6 * HOST_US
        (hidden if collective.hidden else waited)[collective.phase, collective.crosses_nodes] += (
            collective.times * seconds(collective, fabric)
        )
    return Sent(hidden, waited, asked)
