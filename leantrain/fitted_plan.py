"""Says which plan fits a budget of memory, what it says of itself, and what is answered where none does."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from suite.chain.chain import Chain, Link
from suite.chain.plan import Plan, budget_between, by_peak, frontier, outside, unplanned
from suite.chain.schedule import Schedule
from suite.chain.tiers import HostTier
from suite.chain.tree import Item, nested
from suite.meters.clock import Clock
from suite.meters.state import parameter_count, state_bytes
from suite.meters.storage import unique_bytes
from suite.record.amounts import bytes_of
from techniques.offloading.pofo.technique import POFO
from techniques.rematerialization.rotor.technique import Rotor
from techniques.shared.persistent import persistent

MOVING_BUDGETS = 6
LINK_BYTES = 2**26


@dataclass(frozen=True)
class FittedPlan:
    """Says what passes of one shape will cost.

    Attributes:
        memory_bytes: the budget.
        peak_bytes: most bytes alive in a pass, predicted; ``resident_bytes`` of them are there all the time.
        plain_peak_bytes: the same without recomputation.
        extra_time: what recomputation adds, as a share of a plain pass's time.
        recomputed, blocks: how many calls of blocks run again, of how many.
        moved_bytes: that leave for the host and come back.
        schedule: of all calls of blocks, in the order of a pass; ``runs`` is its tree.
        reserved_bytes: on CUDA, what the allocator had reserved when the plan was tried: rounding and fragments, too.
        scaled: whether the bytes are those of another shape, scaled up.
        order: the block of each call.
    """

    memory_bytes: int
    peak_bytes: int
    resident_bytes: int
    plain_peak_bytes: int
    extra_time: float
    schedule: Schedule
    reserved_bytes: int | None = None
    scaled: bool = False
    moved_bytes: int = 0
    order: tuple[nn.Module, ...] = field(default=(), repr=False, compare=False)

    @property
    def runs(self) -> tuple[Item, ...]:
        return nested(self.schedule)

    @property
    def blocks(self) -> int:
        return self.schedule.depth

    @property
    def recomputed(self) -> int:
        return sum(self.schedule.runs(block) > 1 for block in range(self.blocks))

    @property
    def changes(self) -> bool:
        """Tells whether it is another pass than the plain one."""
        return bool(self.recomputed or self.moved_bytes)

    def __str__(self) -> str:
        done = [f"{self.recomputed} of {self.blocks} blocks run again"] if self.recomputed else []
        done += [f"{sized(self.moved_bytes)} leave for the host and come back"] if self.moved_bytes else []
        again = f"{' and '.join(done)}, for {self.extra_time:.1%} more time"
        reserved = f" ({sized(self.reserved_bytes)} reserved)" if self.reserved_bytes is not None else ""
        return (
            f"a pass takes {sized(self.peak_bytes)} of {sized(self.memory_bytes)} at its highest{reserved}, "
            f"{sized(self.resident_bytes)} of them all the time, where a plain one takes "
            f"{sized(self.plain_peak_bytes)}: {again if self.changes else 'no block runs again'}"
            f"{' (scaled from another shape)' if self.scaled else ''}"
        )


def check(model: nn.Module, memory_bytes: int, seconds: str) -> None:
    """Raises ValueError for what no plan can be made of."""
    if seconds not in ("counted", "clocked"):
        raise ValueError(f"seconds are counted or clocked, not {seconds!r}")
    if memory_bytes < weight_bytes(model):
        raise ValueError(
            f"the weights alone take {sized(weight_bytes(model))} of {sized(memory_bytes)}, so that no schedule helps: "
            "raise memory, or take a smaller model or smaller weights (bf16)"
        )
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False) or getattr(module, "grad_checkpointing", False):
            raise ValueError(
                "the model recomputes by itself already: switch its gradient checkpointing off, then fit it"
            )
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
        raise ValueError(
            "the model is compiled as a whole, so that its blocks are no calls of their own: fit it uncompiled, and "
            "compile its blocks (block.compile())"
        )
    if isinstance(model, nn.DataParallel):
        raise ValueError("DataParallel runs copies of the model in threads: fit a model under DistributedDataParallel")
    devices = {str(each.device) for each in model.parameters() if each.device.type != "meta"}
    if len(devices) > 1:
        raise ValueError(f"a budget is of one device, and the weights are on {', '.join(sorted(devices))}")


def check_static_graph(model: nn.Module) -> None:
    """Raises ValueError where DDP would take a pass on trial for its first, and reduce wrongly from then on."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    wrappers = [each for each in gc.get_objects() if type(each) is nn.parallel.DistributedDataParallel]
    for each in wrappers:  # a module does not know who wraps it
        if each.module is model and each.static_graph and not each._static_graph_delay_allreduce_enqueued:
            raise ValueError(
                "DDP with static_graph takes the first backward pass for the graph of all, and fit's would be it: "
                "fit the model before DDP wraps it, or after its first step"
            )


def front_of(chain: Chain, link: Link | None = None, budget_bytes: int = 0) -> list[Plan]:
    """Returns the plans worth having, from the fastest on, each with a lower peak than those before it; with a link to
    the host also those in which values leave: for ``budget_bytes``, and some between the least and a plain pass's."""
    table = persistent(chain)
    points = table.frontiers[0, chain.depth].nbytes + chain.input_bytes
    budgets = [max(table.least_bytes, int(each)) for each in points]
    front = by_peak(Rotor(), [chain], budgets)
    if link is None:
        return front
    some = [budget_between([chain], n / MOVING_BUDGETS) for n in range(MOVING_BUDGETS)]
    return frontier([*front, *by_peak(POFO(), [chain], [budget_bytes, *some], link)])


def link_to_host(offload: str, device: torch.device) -> Link:
    """Returns the link that ``offload`` names ("25GB/s"), or that is measured ("measured").

    Raises ValueError for another text, and for "measured" of a CPU, whose memory is the host's own.
    """
    if offload != "measured":
        rate = bytes_of(offload)
        return Link(rate, rate)
    if device.type == "cpu":
        raise ValueError(
            "on a CPU the host's memory is the device's own, so that nothing is saved by moving values there: leave "
            "offload out, or give a rate ('25GB/s') to plan as for a device with memory of its own"
        )
    tensor, tier, seconds = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device), HostTier(), list[float]()
    for _ in range(5):
        stored, clock = tier.store(tensor), Clock(device)
        began_s = clock.now_s()
        stored.take()
        seconds.append(clock.now_s() - began_s)
    rate = 2 * LINK_BYTES / statistics.median(seconds)  # there and back
    return Link(rate, rate)


def chosen(
    model: nn.Module,
    chain: Chain,
    front: Sequence[Plan],
    memory_bytes: int,
    resident: Mapping[str, int],
    least_bytes: int = 0,
) -> FittedPlan:
    """Chooses the fastest plan of the chain beside ``resident`` bytes, by what they are of; ``least_bytes`` were needed
    by what was tried before.

    Raises ValueError with the least that there is, and what would help.
    """
    there = sum(resident.values())
    plan = next((each for each in front if there + each.peak_bytes <= memory_bytes), None)
    if plan is None:
        least_bytes = front[-1].peak_bytes if front else least_bytes
        raise ValueError(_refusal(model, memory_bytes, least_bytes, resident, chain))
    return said(plan, chain, memory_bytes, there)


def said(plan: Plan, chain: Chain, memory_bytes: int, there: int) -> FittedPlan:
    """Describes a plan of the chain beside bytes that are there all the time."""
    plain = unplanned([chain])
    return FittedPlan(
        memory_bytes,
        there + plan.peak_bytes,
        there,
        there + plain.peak_bytes,
        max(0.0, plan.time_s - plain.time_s) / chain.pass_s if chain.pass_s else 0.0,
        plan.schedules[0],
        moved_bytes=sum(prediction.out_bytes for prediction in plan.predictions),
    )


def larger(chain: Chain, times: float, quadratic: bool) -> Chain:
    """Returns the chain of a batch that is ``times`` as large, at most: where a block keeps values of two lengths,
    graphs and what is made for a moment grow with the square."""
    square = times**2 if quadratic else times

    def grown(nbytes: int | None, by: float = square) -> int:
        return int((nbytes or 0) * by) + 1

    stages = tuple(
        replace(
            stage,
            output_bytes=grown(stage.output_bytes, times),
            saved_bytes=tuple(map(grown, stage.saved_bytes)),
            run_peak_bytes=grown(stage.run_peak_bytes),
            save_peak_bytes=grown(stage.save_peak_bytes),
            back_peak_bytes=grown(stage.back_peak_bytes),
            again_peak_bytes=grown(stage.again_peak_bytes),
        )
        for stage in chain.stages
    )
    beside = tuple(
        replace(
            each,
            forward_bytes=grown(each.forward_bytes) if each.forward_bytes > 0 else each.forward_bytes,
            backward_bytes=grown(each.backward_bytes) if each.backward_bytes > 0 else each.backward_bytes,
            between_bytes=grown(each.between_bytes),
        )
        for each in chain.beside
    )
    return replace(
        chain,
        stages=stages,
        beside=beside,
        input_bytes=grown(chain.input_bytes, times),
        forward_bytes=max(each.forward_bytes for each in beside),
        backward_bytes=max(each.backward_bytes for each in beside),
        turn_peak_bytes=grown(chain.turn_peak_bytes),
        outside_bytes=grown(chain.outside_bytes),
    )


def accumulating(chain: Chain) -> Chain:
    """Returns the chain of a pass that finds gradients: what it adds to them is there for a moment alone."""
    return replace(chain, stages=tuple(replace(stage, gradient_bytes=0) for stage in chain.stages))


def _refusal(model: nn.Module, memory_bytes: int, least_bytes: int, resident: Mapping[str, int], chain: Chain) -> str:
    trained = [each for each in model.parameters() if each.requires_grad]
    wide = [each for each in model.parameters() if each.dtype is torch.float32]
    state, gradients = resident["optimizer state"], unique_bytes(trained)
    helps = {
        "8-bit optimizer states": state - 2 * parameter_count(model, trainable=True),
        "weights and gradients in bf16": (unique_bytes(wide) + unique_bytes(e for e in wide if e.requires_grad)) // 2,
        "LoRA": state + gradients if gradients > weight_bytes(model) // 2 else 0,
    }
    parts = [f"{sized(nbytes)} of {name}" for name, nbytes in resident.items() if nbytes]
    advice = [f"{name} (up to {sized(nbytes)} less)" for name, nbytes in helps.items() if nbytes > 0]
    outside_bytes, of = outside([chain])
    there = sum(resident.values())
    beyond = f" (no schedule helps against the {sized(outside_bytes)} outside the blocks ({of}))"
    beyond = beyond if outside_bytes > memory_bytes - there else ""
    return (
        f"a pass does not fit in {sized(memory_bytes)}: its least is {sized(there + least_bytes)}, "
        f"{', '.join(parts)} and {sized(least_bytes)} of the pass itself{beyond}; "
        f"{', '.join([*advice, 'a smaller batch'])} would help"
    )


def weight_bytes(model: nn.Module) -> int:
    """Counts the bytes of parameters and buffers."""
    return unique_bytes([*model.parameters(), *model.buffers()])


def state_of(optimizer: Any, model: nn.Module) -> int:
    """Counts the bytes of an optimizer's state; before its first step those of AdamW's; of none, 0."""
    if optimizer is None:
        return 0
    return state_bytes(optimizer) or 8 * parameter_count(model, trainable=True)


def sized(nbytes: float) -> str:
    """Writes bytes as, for example, 1.5 GB."""
    power = max(0, min(3, (len(str(int(nbytes))) - 1) // 3))
    return f"{nbytes / 1000**power:.4g} {('bytes', 'kB', 'MB', 'GB')[power]}"
