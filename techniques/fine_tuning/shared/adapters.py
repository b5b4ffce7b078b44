"""Gives a model frozen weights and low-rank updates, by this suite's layers or by peft's: for lora and alpaca_lora.

peft is the peer: it adapts the same layers with the same rank, scale and initial A, so that only the implementation is
another. Where a layer makes queries, keys and values, peft adapts it whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.model.anatomy import anatomy, is_transposed
from suite.model.projections import Rows
from techniques.fine_tuning.shared.low_rank import (
    Initialization,
    LowRankLinear,
    LowRankWeight,
    check_rank,
    first_factor,
    targets_of,
    updates,
)

Implementation = Literal["own", "peft"]
PEFT_FACTORS = ("lora_A", "lora_B")


class LowRank(NamedTuple):
    """Holds the settings of an update."""

    rank: int
    alpha: float
    dropout: float
    initialization: Initialization = "kaiming_uniform"


def adapted(
    model: nn.Module, run: Run, names: Sequence[str], update: LowRank, implementation: Implementation
) -> nn.Module:
    """Returns ``model``, frozen, with a trainable update of the layers called ``names``.

    Raises ValueError where there are none, the rank is above a layer's, or the model reads the weight of one without a
    call and dropout is asked for.
    """
    targets = targets_of(run, model, names)
    model.requires_grad_(False)
    for rows in targets:
        check_rank(update.rank, rows)
        if rows[0].bypassed:
            reads = f"the model reads {rows[0].layer.path}'s weight and never calls it"
            if update.dropout:
                raise ValueError(f"{reads}: there is no input to drop out")
            if implementation == "peft":
                raise ValueError(f"{reads}: peft's layer in its place would do nothing; leave implementation=peft out")
    if implementation == "peft":
        return _by_peft(model, targets, update, run.generator)
    parts = anatomy(model)
    for rows in targets:
        layer, numbers = rows[0].layer, [row.rows for row in rows]
        kind = LowRankWeight if rows[0].bypassed else LowRankLinear
        parts.replace(layer.path, kind(layer.module, numbers, *update, run.generator))
    return model


def check_installed(implementation: Implementation) -> None:
    """Raises ValueError where the package is not there."""
    if implementation != "own" and find_spec(implementation) is None:
        raise ValueError(f"{implementation} is not installed: pip install {implementation}")


def sites(model: nn.Module) -> Mapping[str, Site]:
    """Returns the factors, and the layers that are called."""
    places: dict[str, Site] = {}
    for path, update in updates(model).items():
        places |= {f"{path}.{name}": factor for name, factor in update.named_parameters() if factor.requires_grad}
        if not isinstance(update, LowRankWeight):
            places[path] = update
    peers = {
        name: parameter for name, parameter in model.named_parameters() if any(part in name for part in PEFT_FACTORS)
    }
    return {**places, **peers}


def _by_peft(
    model: nn.Module, targets: Sequence[Sequence[Rows]], update: LowRank, generator: torch.Generator
) -> nn.Module:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft loads it, and it misses a kernel for 4-bit weights
    from peft import LoraConfig, inject_adapter_in_model

    layers = {rows[0].layer.path: rows[0].layer.module for rows in targets}
    for transposed in sorted({is_transposed(layer) for layer in layers.values()}):
        alpha: Any = update.alpha  # any number, which its annotation does not say
        config = LoraConfig(
            r=update.rank,
            lora_alpha=alpha,
            lora_dropout=update.dropout,
            fan_in_fan_out=transposed,
            target_modules=[path for path, layer in layers.items() if is_transposed(layer) == transposed],
        )
        inject_adapter_in_model(config, model)
    for path in layers:
        a: Any = model.get_submodule(f"{path}.lora_A.default").weight
        with torch.no_grad():
            a.copy_(first_factor(update.rank, a.shape[1], update.initialization, generator))
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in PEFT_FACTORS))
    return model
