"""Layers of the catalogue, for your own models.

===============  ====================================================================================================
LayerScale       Touvron et al. 2021 (CaiT, arXiv 2103.17239): a branch's last layer, its output times a learnable
                 ``scale`` [out_features] that starts at ``initial`` > 0.
LowRankLinear    Hu et al. 2021 (LoRA, arXiv 2106.09685): a frozen linear layer plus a trainable update of rank r on
                 ranges of its output columns; ``add_to_weight(+1)`` merges it.
===============  ====================================================================================================

Both wrap a linear layer (``nn.Linear`` or Hugging Face's ``Conv1D``) and map [..., in_features] to [..., out_features]:

    >>> block.mlp.fc2 = leantrain.layers.LayerScale(block.mlp.fc2, initial=0.1)

They take part in ``state_dict`` under their own names; a wrapped layer is at ``.linear``.
"""

from techniques.fine_tuning.shared.low_rank import LowRankLinear as LowRankLinear
from techniques.initialization.layerscale.technique import LayerScale as LayerScale

__all__ = ["LayerScale", "LowRankLinear"]
