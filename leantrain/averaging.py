"""Implements LAWA: the mean of the latest k checkpoints (Kaddour 2022, arXiv 2209.14981), as torch averages weights.

>>> averaged = LAWA(model, k=6)
>>> averaged.update_parameters(model)      # once an epoch
>>> averaged(inputs)                       # the mean of the latest six
>>> torch.optim.swa_utils.update_bn(loader, averaged)
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from suite.kernels.sharded import local
from techniques.large_batch.lawa.technique import Weights, mean, snapshot


class LAWA(AveragedModel):
    """Averages, like ``torch.optim.swa_utils.AveragedModel``, the latest ``k`` models, and not all; ``state_dict`` has
    them.

    ``n_averaged`` counts all updates. Buffers are the latest model's. Under FSDP2 make it of the model before that is
    sharded, and shard ``module`` in the same way: a sharded model cannot be copied.
    """

    def __init__(self, model: nn.Module, k: int = 6, device: torch.device | int | None = None) -> None:
        if k < 1:
            raise ValueError(f"k, the number of checkpoints to average, must be at least 1, not {k}")
        super().__init__(model, device)
        self.latest: deque[Weights] = deque(maxlen=k)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Takes a checkpoint of ``model``."""
        own = {name: local(each) for name, each in self.module.named_parameters()}
        taken = {name: local(each) for name, each in snapshot(model).items()}
        if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in taken.items()}:
            raise ValueError(
                "the model has other parameters than the one that LAWA was made of: make a new LAWA, "
                "and shard its module as the model is"
            )
        self.latest.append({name: each.to(own[name].device) for name, each in taken.items()})
        for name, average in mean(list(self.latest)).items():
            own[name].copy_(average)
        for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
        self.n_averaged += 1

    def get_extra_state(self) -> dict[str, Any]:
        return {"latest": list(self.latest)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.latest = deque(state["latest"], maxlen=self.latest.maxlen)
