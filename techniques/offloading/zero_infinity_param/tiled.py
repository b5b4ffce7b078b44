"""Implements memory-centric tiling (Rajbhandari et al., "ZeRO-Infinity", SC 2021, arXiv 2104.07857, section 5.1.3): a
large linear layer as several that compute its output features one after the other, so that no more than one tile's
weights need be on the device. For ``zero_infinity_param``.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from suite.model.anatomy import in_features, is_transposed, out_features


class Tiled(nn.Module):
    """Splits ``linear`` into ``tiles`` parts [its output features / tiles, in], each a layer of the same kind.

    Outputs are put side by side: each is what the whole layer gives there. Gradients for the input are summed tile by
    tile, in another order than in one product.
    """

    def __init__(self, linear: nn.Module, tiles: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features(linear), out_features(linear)
        if tiles > self.out_features:
            raise ValueError(f"{self.out_features} output features have no {tiles} tiles: choose fewer")
        dim = 1 if is_transposed(linear) else 0
        weights = linear.get_parameter("weight").detach().tensor_split(tiles, dim)
        bias = getattr(linear, "bias", None)
        biases = bias.detach().tensor_split(tiles) if bias is not None else [None] * tiles
        self.tiles = nn.ModuleList(_tile(linear, w, b, w.shape[dim]) for w, b in zip(weights, biases, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([tile(x) for tile in self.tiles], -1)


def _tile(linear: nn.Module, weight: Tensor, bias: Tensor | None, features: int) -> nn.Module:
    tile = copy.copy(linear)
    tile._parameters = {
        "weight": nn.Parameter(weight.clone(), linear.get_parameter("weight").requires_grad),
        "bias": None if bias is None else nn.Parameter(bias.clone(), linear.get_parameter("bias").requires_grad),
    }
    setattr(tile, "nf" if is_transposed(linear) else "out_features", features)
    return tile
