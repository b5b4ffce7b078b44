"""Handles low-rank adapters of a model of yours: merged into its weights, or kept as peft keeps them.

    >>> model, optimizer, context = leantrain.apply(model, "lora", learning_rate=1e-4)
    >>> ...                                                   # training
    >>> leantrain.adapters.save(model, "adapter")             # peft.PeftModel.from_pretrained(base, "adapter") reads it
    >>> leantrain.adapters.merge(model)                       # plain layers again, with the update in their weights

They are of ``lora`` and ``alpaca_lora``, or :class:`leantrain.layers.LowRankLinear` put in by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from suite.model.anatomy import is_transposed, out_features
from suite.record.files import replacing
from techniques.fine_tuning.shared.low_rank import LowRankLinear, LowRankWeight, updates

PREFIX = "base_model.model."  # of peft's names
CONFIGURATION, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def merge(model: nn.Module) -> nn.Module:
    """Puts the layers themselves, with weight W0 + (alpha / r) B A, in place of the adapted ones; returns ``model``.

    Raises ValueError where no layer is adapted.
    """
    for path, update in _updates(model).items():
        update.add_to_weight(+1)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, update.linear)
    return model


def save(model: nn.Module, folder: str | Path) -> Path:
    """Writes the adapters, and what else is trained, to a folder in peft's format; returns it.

    Where parts of a fused layer have updates of their own, the file has one of their ranks' sum, which adds the same.
    Modules outside of the adapters that are trained (a head) are saved whole, as peft's ``modules_to_save``.

    Raises ValueError where no layer is adapted, or the model reads the weight of one that it never calls, which peft
    has no adapter for.
    """
    adapted = _updates(model)
    if read := [path for path, each in adapted.items() if isinstance(each, LowRankWeight)]:
        raise ValueError(f"the model reads {read[0]}'s weight and never calls it: merge(model) and save the model")
    tensors, ranks, alphas = {}, {}, {}
    for path, update in adapted.items():
        a, b = joined(update)
        tensors[f"{PREFIX}{path}.lora_A.weight"], tensors[f"{PREFIX}{path}.lora_B.weight"] = a, b
        ranks[path], alphas[path] = len(a), update.scale * len(a)
    whole = _trained_besides(model, adapted)
    for path in whole:
        tensors |= {f"{PREFIX}{path}.{name}": each for name, each in model.get_submodule(path).state_dict().items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = _configuration(model, adapted, ranks, alphas, whole)
    with replacing(folder / WEIGHTS) as partial:
        save_file({name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}, partial)
    with replacing(folder / CONFIGURATION) as partial:
        partial.write_text(json.dumps(contents, indent=2) + "\n", "utf-8")
    return folder


def joined(update: LowRankLinear) -> tuple[Tensor, Tensor]:
    """Returns A [rank, in_features] and B [out_features, rank] of all of a layer's updates as one, whose rank is their
    sum."""
    parts = list(update.updates())
    a = torch.cat([each for _, each, _ in parts])
    b = a.new_zeros(out_features(update.linear), len(a))
    start = 0
    for rows, _, own in parts:
        b[rows, start : start + own.shape[1]] = own.detach()
        start += own.shape[1]
    return a.detach(), b


def _updates(model: nn.Module) -> dict[str, LowRankLinear]:
    adapted = updates(model)
    if not adapted:
        raise ValueError(f"no layer of {type(model).__name__} has a low-rank update: apply lora, or train it first")
    return adapted


def _trained_besides(model: nn.Module, adapted: dict[str, LowRankLinear]) -> list[str]:
    """Lists the modules outside of the adapters with trainable parameters of their own."""
    inside = tuple(f"{path}." for path in adapted)
    names = [name for name, each in model.named_parameters() if each.requires_grad and not name.startswith(inside)]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _configuration(
    model: nn.Module,
    adapted: dict[str, LowRankLinear],
    ranks: dict[str, int],
    alphas: dict[str, float],
    whole: list[str],
) -> dict[str, Any]:
    first = next(iter(adapted))
    transposed = {is_transposed(each.linear) for each in adapted.values()}
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": getattr(getattr(model, "config", None), "_name_or_path", "") or None,
        "inference_mode": True,
        "r": ranks[first],
        "lora_alpha": alphas[first],
        "lora_dropout": adapted[first].dropout.p,
        "rank_pattern": {path: rank for path, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {path: alpha for path, alpha in alphas.items() if alpha != alphas[first]},
        "target_modules": list(adapted),
        "modules_to_save": whole or None,
        "fan_in_fan_out": transposed == {True},
        "bias": "none",
    }
