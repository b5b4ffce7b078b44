"""Tells what GPUs send one another in a step, and how long that takes: latency and bytes over bandwidth, by ring.

    all-gather, reduce-scatter   (p - 1) hops  +  (p - 1) / p x bytes / bandwidth
    all-reduce                   both
    all-to-all, broadcast        as an all-gather; what leaves a node goes over a rank's own card
    send                         one hop  +  bytes / bandwidth
    what a step waits for        its ranks come together first: a time for each node that the group spans

(Thakur et al., *Optimization of Collective Communication Operations in MPICH*, 2005, section 4; hops of a long ring go
up a tree, so their number grows with the logarithm above 8 ranks.) A group inside a node uses its links; one that
crosses nodes is as slow as the network cards that it has: a node's cards are shared by the groups that cross there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal, cast

from suite.record.operator_counts import COLLECTIVE, PHASES, Phase, TracedStep
from suite.topics.modelled_time.devices import Gpu

Name = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast", "send"]
NODE = 8
"""GPUs of a node, of most machines: those that NVLink or a host's links join."""
NODES = 32
"""Nodes that published steps say something of: beyond, links stall for reasons that no row states."""
REACHED_INSIDE, REACHED_ACROSS = 0.78, 0.70
"""Share of a datasheet's bandwidth that large collectives reach: priors, as NCCL's tests have them."""
CONTENDED = 0.15
"""What beside a collective is slower by: NCCL's kernels occupy 16 of an A100's 108 multiprocessors."""
HOST_US = 30.0
"""What the host takes to ask for one."""


@dataclass(frozen=True)
class Fabric:
    """Describes the links of a cluster's GPUs. Bandwidths are the datasheets', GB/s one way, of each GPU; times in us.

    Attributes:
        node: GPUs that the links inside join.
        inside_us, across_us: of a hop.
        meet_us: until the ranks of a node have come to a collective that their steps wait for; as much for each node.
    """

    inside_gb_s: float
    across_gb_s: float
    source: str
    node: int = NODE
    inside_us: float = 4.0
    across_us: float = 15.0
    meet_us: float = 100.0


FABRICS: Mapping[str, Fabric] = {
    "A100": Fabric(300, 25, "NVIDIA A100 datasheet: NVLink 3; a node of 1600 Gbit/s (llm-foundry's README)"),
    "H100": Fabric(450, 50, "NVIDIA H100 datasheet: NVLink 4; a node of 3200 Gbit/s"),
    "B200": Fabric(900, 50, "NVIDIA DGX B200 datasheet: NVLink 5; a node of 3200 Gbit/s"),
    "GB200": Fabric(900, 50, "NVIDIA GB200 NVL72 datasheet: NVLink 5 among 72 GPUs; a card of 400 Gbit/s each", 72),
    "GB300": Fabric(900, 100, "NVIDIA GB300 NVL72 datasheet: NVLink 5 among 72 GPUs; a card of 800 Gbit/s each", 72),
    "V100": Fabric(150, 6, "NVIDIA DGX-1 datasheet: NVLink 2; a node of 400 Gbit/s"),
    "MI300X": Fabric(448, 50, "AMD MI300X datasheet: 7 Infinity Fabric links of 64 GB/s; a node of 3200 Gbit/s"),
    "PCIe": Fabric(24, 12, "PCIe 4.0, 16 lanes; a card of 100 Gbit/s"),
}
OF_GPU: Mapping[str, str] = {
    "V100": "V100",
    "A100-40": "A100",
    "A100-80": "A100",
    "H100-SXM": "H100",
    "H200": "H100",
    "B200": "B200",
    "GB200": "GB200",
    "GB300": "GB300",
    "MI300X": "MI300X",
}
"""GPUs whose nodes have links of their own; all others' share the host's."""


def fabric_of(gpu: Gpu) -> Fabric:
    """Returns the links of a node of such GPUs, and those between nodes."""
    if gpu.name in OF_GPU:
        return FABRICS[OF_GPU[gpu.name]]
    return replace(FABRICS["PCIe"], inside_gb_s=gpu.link_gb_s, source="the link to the host, as its datasheet has it")


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

    def nodes(self, fabric: Fabric) -> int:
        """Counts the nodes that its group spans, if ranks fill one after the other."""
        return min(self.ranks, ceil(self.ranks * self.stride / fabric.node))

    def crosses_nodes(self, fabric: Fabric) -> bool:
        return self.ranks * self.stride > fabric.node


def collectives_of(step: TracedStep) -> list[Collective]:
    """Returns what a rank's traced step sends."""
    return [
        Collective(
            cast(Name, operator.name),
            operator.phase,
            operator.read_bytes,
            operator.ranks,
            operator.stride,
            times,
            operator.hidden,
        )
        for operator, times in step
        if operator.kind == COLLECTIVE
    ]


def seconds(collective: Collective, fabric: Fabric) -> float:
    """Returns what one of them takes on the links, in s, from when its ranks are there."""
    ranks = collective.ranks
    if ranks < 2:
        return 0.0
    here = max(1, min(ranks, fabric.node // collective.stride))  # ranks of the group in a node
    bandwidth, hop_us = 1e9 * fabric.inside_gb_s * REACHED_INSIDE, fabric.inside_us
    hops = min(ranks - 1, (NODE - 1) * log2(ranks) / log2(NODE))
    if collective.crosses_nodes(fabric):
        cards = 1 if collective.name in ("all-to-all", "send") else here
        bandwidth = min(bandwidth, 1e9 * fabric.across_gb_s * cards * REACHED_ACROSS)
        hop_us = fabric.across_us
        hops = log2(ranks)
    if collective.name == "send":
        return 1e-6 * hop_us + collective.nbytes / bandwidth
    once = 1e-6 * hop_us * hops + collective.nbytes * (ranks - 1) / ranks / bandwidth
    return 2 * once if collective.name == "all-reduce" else once


def meeting_s(collective: Collective, fabric: Fabric) -> float:
    """Returns what a step waits for before one of them begins, in s: until its ranks are there. What is hidden does not
    keep it waiting."""
    return 0.0 if collective.hidden or collective.ranks < 2 else 1e-6 * fabric.meet_us * collective.nodes(fabric)


@dataclass(frozen=True)
class Sent:
    """Holds a step's time on its links by phase, s: beside its operators, and while they wait; inside nodes and across
    (True). Until ranks have met, by phase. And what its host takes to ask for all."""

    hidden: Mapping[tuple[Phase, bool], float]
    waited: Mapping[tuple[Phase, bool], float]
    met: Mapping[Phase, float]
    asked: Mapping[Phase, float]


def sent(collectives: Iterable[Collective], fabric: Fabric) -> Sent:
    """Adds up all of a step's, by phase and by whether they cross nodes."""
    hidden, waited = ({(phase, across): 0.0 for phase in PHASES for across in (False, True)} for _ in range(2))
    met, asked = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
    for collective in collectives:
        asked[collective.phase] += collective.times * 1e-6 * HOST_US
        met[collective.phase] += collective.times * meeting_s(collective, fabric)
        (hidden if collective.hidden else waited)[collective.phase, collective.crosses_nodes(fabric)] += (
            collective.times * seconds(collective, fabric)
        )
    return Sent(hidden, waited, met, asked)
