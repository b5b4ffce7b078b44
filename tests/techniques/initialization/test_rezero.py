"""ReZero against its equation written out on torch's own multi-head attention."""

import torch
from torch import Tensor, nn

from techniques.initialization.rezero.technique import ReZero
from tests.techniques.written_out import assert_they_train_alike, attention, mlp, trial_run, vit


def test_trains_as_the_equation_does() -> None:
    """Equation 1, with a number for each block."""
    ours, plain = ReZero().model(vit(), trial_run()).double(), vit()
    numbers = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in plain.blocks]

    def equation(pictures: Tensor) -> Tensor:
        x = plain.patch_embed(pictures) + plain.pos_embed
        for block, a in zip(plain.blocks, numbers, strict=True):
            x = x + a * attention(block, x)
            x = x + a * mlp(block, x)
        return plain.head(x.mean(1))

    theirs = [*numbers, *(each for name, each in plain.named_parameters() if "norm" not in name)]
    assert_they_train_alike(ours, ours.parameters(), equation, theirs)
