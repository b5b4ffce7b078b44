"""Offers layers of the catalogue, for your own models.

===============  ====================================================================================================
LayerScale       Touvron et al. 2021 (CaiT, arXiv 2103.17239): a branch's last layer, its output times a learnable
                 ``scale`` [out_features] that starts at ``initial`` > 0.
LowRankLinear    Hu et al. 2021 (LoRA, arXiv 2106.09685): a frozen linear layer plus a trainable update of rank r on
                 ranges of its output columns; ``add_to_weight(+1)`` merges it.
===============  ====================================================================================================

Both wrap a linear layer (``nn.Linear`` or Hugging Face's ``Conv1D``) and map [..., in_features] to [..., out_features]:

    >>> block.mlp.fc1 = leantrain.layers.LowRankLinear(block.mlp.fc1, rank=2)
    >>> block.mlp.fc2 = leantrain.layers.LayerScale(block.mlp.fc2, initial=0.1)

They take part in ``state_dict`` under their own names; a wrapped layer is at ``.linear``. ``leantrain.adapters`` merges
and saves all low-rank layers of a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from suite.model.anatomy import out_features
from suite.model.fast_paths import called_in_evaluation
from techniques.fine_tuning.shared import low_rank
from techniques.fine_tuning.shared.low_rank import Initialization
from techniques.initialization.layerscale import technique as layerscale

__all__ = ["LayerScale", "LowRankLinear"]


class LayerScale(layerscale.LayerScale):
    """Wraps ``end``, a branch's last layer, with its output times a learnable scale [width] that starts at ``initial``.

    CaiT's own start is 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6 beyond. ``width`` is asked for where the layer does
    not say how many features it gives.
    """

    def __init__(self, end: nn.Module, initial: float = 0.1, width: int | None = None) -> None:
        super().__init__(end, initial, width)
        called_in_evaluation(self)


class LowRankLinear(low_rank.LowRankLinear):
    """Computes y = W0 x + (alpha / rank) B A x, with W0 frozen and B zero as training begins.

    Args:
        linear: the layer; its weight is frozen here.
        rows: the output columns that get updates, a range or a list of indices for each; None for one update of all.
        alpha: None for twice the rank.
        dropout: of the update's input.
        generator: of A's first values; None for torch's own.
    """

    def __init__(
        self,
        linear: nn.Module,
        rows: Sequence[Sequence[int]] | None = None,
        rank: int = 8,
        alpha: float | None = None,
        dropout: float = 0.0,
        initialization: Initialization = "kaiming_uniform",
        generator: torch.Generator | None = None,
    ) -> None:
        if rank < 1:
            raise ValueError(f"rank is 1 or more, not {rank}")
        whole = [range(out_features(linear))] if rows is None else rows
        alpha = 2.0 * rank if alpha is None else alpha
        super().__init__(linear, whole, rank, alpha, dropout, initialization, generator)  # type: ignore[arg-type]  # as torch's
        called_in_evaluation(self)
