"""Adapters against their formula written out on torch's own attention."""

import torch
from torch import Tensor

from techniques.fine_tuning.adapter_houlsby.technique import Adapters, adapters
from tests.techniques.written_out import assert_they_train_alike, attention, mlp, trial_run, vit


def bottleneck(h: Tensor, weights: dict[str, Tensor]) -> Tensor:
    u = h @ weights["down"].T + weights["down_bias"]
    gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
    return h + gelu @ weights["up"].T + weights["up_bias"]


def test_trains_as_the_equation_does() -> None:
    """Figure 2 in a pre-norm block, with a plain model's weights."""
    ours, plain = Adapters(bottleneck=4).model(vit(), trial_run()), vit()
    weights = [
        {name: each.detach().clone().requires_grad_() for name, each in adapter.named_parameters(recurse=False)}
        for adapter in adapters(ours).values()
    ]

    def equation(pictures: Tensor) -> Tensor:
        x = plain.patch_embed(pictures) + plain.pos_embed
        for block, behind_attention, behind_mlp in zip(plain.blocks, weights[::2], weights[1::2], strict=True):
            x = x + bottleneck(attention(block, block.norm1(x)), behind_attention)
            x = x + bottleneck(mlp(block, block.norm2(x)), behind_mlp)
        return plain.head(plain.fc_norm(x.mean(1)))

    own = [each for each in ours.parameters() if each.requires_grad]
    theirs = [each for one in weights for each in one.values()]
    theirs += [each for name, each in plain.named_parameters() if "norm" in name or name.startswith("head")]
    assert_they_train_alike(ours, own, equation, theirs)
