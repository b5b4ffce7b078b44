"""Has what offloading solvers share: which values may leave, and a plain pass in which chosen ones do.

    forward    F0 >v0   F1 ~v0 >v1   F2 ~v1 >v2  |        v_i: the chosen values of block i
    backward   <v2   <v1 B2   <v0 B1   B0

A value leaves behind its block's forward pass, beside the next blocks'. ``lag`` blocks later computation waits for it,
so that its place is free; ``ahead`` blocks before its backward pass it starts its way back. Both are chosen by the
simulation: the fastest that fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, Value, plain, tidied
from suite.chain.simulate import Prediction, predicted
from suite.loop.chains import FLOPS_PER_S
from techniques.shared.scheduled import Scheduled

LAGS = (0, 1, 2)
AHEADS = (0, 1, 2, 4)


@dataclass
class Offloaded(Scheduled):
    """Makes a plan over a link, which carries a byte each way while the device computes ``flops_per_byte`` FLOPs.

    The default is about what a block of the small sizes computes for each byte that it saves, so that offloading is
    neither free nor hopeless there; a CPU copies a byte in some 6 FLOPs' time, a V100 over PCIe 3 in 1300.
    """

    flops_per_byte: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.flops_per_byte > 0:
            raise ValueError(f"flops_per_byte is above 0 (a V100 over PCIe 3: 1300), not {self.flops_per_byte}")

    def link(self) -> Link:
        rate = FLOPS_PER_S / self.flops_per_byte
        return Link(rate, rate)


def candidates(chain: Chain) -> list[Value]:
    """Returns every value that a plain pass holds from a block's forward pass to its backward pass, in the order of
    saving."""
    return [
        value
        for block, stage in enumerate(chain.stages)
        for value in (
            *([Value(block)] if stage.holds_input else []),
            *(Value(block, item) for item in range(len(stage.saved_bytes) - stage.stays)),
        )
    ]


def nbytes(chain: Chain, value: Value) -> int:
    """Returns the bytes of a value."""
    own = chain.stages[value.block].saved_bytes
    return chain.activation_bytes[value.block] if value.item is None else own[value.item]


def leaving(chain: Chain, chosen: Collection[Value], lag: int = 1, ahead: int = 1) -> Schedule:
    """Returns the plain pass in which ``chosen`` values leave and come back."""
    depth = chain.depth
    of = [[value for value in chosen if value.block == block] for block in range(depth)]
    ops: list[Op] = []
    for block in range(depth):
        ops += [Op("save", block), *(Op("offload", *value) for value in of[block])]
        if block >= lag:
            ops += [Op("wait", *value) for value in of[block - lag]]
    ops += [
        Op("wait", *value) for block in range(max(depth - lag, 0), depth) for value in of[block] if block < depth - 1
    ]
    ops.append(TURN)
    fetched = depth
    for block in reversed(range(depth)):
        while fetched > max(block - ahead, 0) and ahead:
            fetched -= 1
            ops += [Op("prefetch", *value) for value in of[fetched]]
        ops.append(Op("back", block))
    return tidied(depth, ops)


def plain_fits(chain: Chain, budget_bytes: int) -> bool:
    """Tells whether nothing has to leave."""
    return predicted(plain(chain.depth), chain).peak_bytes <= budget_bytes


def fastest_way(
    chain: Chain, chosen: Collection[Value], budget_bytes: int, link: Link
) -> tuple[Schedule, Prediction] | None:
    """Finds the fastest of all lags and distances at which ``chosen`` leave and the pass fits; None where none does."""
    if least_peak(chain, chosen, link) > budget_bytes:
        return None
    best: tuple[Schedule, Prediction] | None = None
    for lag, ahead in product(LAGS, AHEADS):
        schedule = leaving(chain, chosen, lag, ahead)
        cost = predicted(schedule, chain, link)
        if cost.peak_bytes <= budget_bytes and (best is None or cost.time_s < best[1].time_s):
            best = schedule, cost
    return best


def fastest_set(
    chain: Chain, sets: Iterable[Collection[Value]], budget_bytes: int, link: Link | None, what: str
) -> Schedule:
    """Finds the fastest schedule of these sets of values that fits. Raises Infeasible, with the least peak of them."""
    known = linked(link)
    best: tuple[Schedule, Prediction] | None = None
    tried: list[Collection[Value]] = []
    for chosen in sets:
        tried.append(chosen)
        way = fastest_way(chain, chosen, budget_bytes, known)
        if way and (best is None or way[1].time_s < best[1].time_s):
            best = way
    if best is None:
        raise Infeasible(what, budget_bytes, min(least_peak(chain, chosen, known) for chosen in tried))
    return best[0]


def least_peak(chain: Chain, chosen: Collection[Value], link: Link) -> int:
    """Returns the least peak at which ``chosen`` may leave: with every transfer waited for."""
    return predicted(leaving(chain, chosen, lag=0, ahead=0), chain, link).peak_bytes


def linked(link: Link | None) -> Link:
    """Returns the link. Raises ValueError where there is none."""
    if link is None:
        raise ValueError("offloading needs a link: pass its bytes per second")
    return link
