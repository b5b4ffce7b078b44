"""Which plan fits a budget of memory, what it says of itself, and what is answered where none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from suite.chain.chain import Chain
from suite.chain.plan import budget_between, by_peak, outside, unplanned
from suite.chain.schedule import Schedule
from suite.meters.state import parameter_count, state_bytes
from suite.meters.storage import unique_bytes
from techniques.rematerialization.rotor.technique import Rotor
from techniques.shared.persistent import persistent

SHARES = 16  # of the way from the least peak to a plain one's, as budgets for a model of several chains


@dataclass(frozen=True)
class FittedPlan:
    """What passes of one shape will cost.

    Attributes:
        memory_bytes: the budget.
        peak_bytes: most bytes alive in a pass, predicted; ``resident_bytes`` of them are there all the time.
        plain_peak_bytes: the same without recomputation.
        extra_time: what recomputation adds, as a share of a plain pass's time.
        recomputed, blocks: how many blocks run again, of how many.
        schedules: of each stack of blocks, by its path in the model.
    """

    memory_bytes: int
    peak_bytes: int
    resident_bytes: int
    plain_peak_bytes: int
    extra_time: float
    recomputed: int
    blocks: int
    schedules: Mapping[str, Schedule]

    def __str__(self) -> str:
        again = f"{self.recomputed} of {self.blocks} blocks run again, for {self.extra_time:.1%} more time"
        return (
            f"a pass takes {sized(self.peak_bytes)} of {sized(self.memory_bytes)} at its highest, "
            f"{sized(self.resident_bytes)} of them all the time, where a plain one takes "
            f"{sized(self.plain_peak_bytes)}: {again if self.recomputed else 'no block runs again'}"
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
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ValueError("a schedule runs blocks one by one, which a compiled model does not: fit it uncompiled")
    distributed = torch.distributed
    ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if ranks > 1 or isinstance(model, nn.DataParallel):
        raise ValueError("a schedule is of one process: fit a model that trains in a single one")


def chosen(model: nn.Module, chains: Mapping[str, Chain], memory_bytes: int, resident: Mapping[str, int]) -> FittedPlan:
    """The fastest plan of the model's chains, by their paths, beside ``resident`` bytes, by what they are of.

    Raises ValueError with the least that there is, and what would help.
    """
    listed, there = list(chains.values()), sum(resident.values())
    front = by_peak(Rotor(), listed, _budgets(listed))
    plan = next((each for each in front if there + each.peak_bytes <= memory_bytes), None)
    if plan is None:
        raise ValueError(_refusal(model, memory_bytes, front[-1].peak_bytes, resident, listed))
    plain = unplanned(listed)
    runs = [schedule.runs(block) for schedule in plan.schedules for block in range(schedule.depth)]
    return FittedPlan(
        memory_bytes,
        there + plan.peak_bytes,
        there,
        there + plain.peak_bytes,
        max(0.0, plan.time_s - plain.time_s) / listed[0].pass_s,
        sum(each > 1 for each in runs),
        len(runs),
        dict(zip(chains, plan.schedules, strict=True)),
    )


def _budgets(chains: Sequence[Chain]) -> list[int]:
    """Those at which a plan changes; of several chains, some of them."""
    if len(chains) > 1:
        return [budget_between(chains, share / SHARES) for share in range(SHARES + 1)]
    table = persistent(chains[0])
    points = table.frontiers[0, chains[0].depth].nbytes + chains[0].input_bytes
    return [max(table.least_bytes, int(each)) for each in points]


def _refusal(
    model: nn.Module, memory_bytes: int, least_bytes: int, resident: Mapping[str, int], chains: Sequence[Chain]
) -> str:
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
    outside_bytes, of = outside(chains)
    there = sum(resident.values())
    beyond = f" (no schedule helps against the {sized(outside_bytes)} outside the blocks ({of}))"
    beyond = beyond if outside_bytes > memory_bytes - there else ""
    return (
        f"a pass does not fit in {sized(memory_bytes)}: its least is {sized(there + least_bytes)}, "
        f"{', '.join(parts)} and {sized(least_bytes)} of the pass itself{beyond}; "
        f"{', '.join([*advice, 'a smaller batch'])} would help"
    )


def weight_bytes(model: nn.Module) -> int:
    """Of parameters and buffers."""
    return unique_bytes([*model.parameters(), *model.buffers()])


def state_of(optimizer: Any, model: nn.Module) -> int:
    """Bytes of an optimizer's state; before its first step those of AdamW's; of none, 0."""
    if optimizer is None:
        return 0
    return state_bytes(optimizer) or 8 * parameter_count(model, trainable=True)


def sized(nbytes: float) -> str:
    """1.5 GB."""
    power = max(0, min(3, (len(str(int(nbytes))) - 1) // 3))
    return f"{nbytes / 1000**power:.4g} {('bytes', 'kB', 'MB', 'GB')[power]}"
