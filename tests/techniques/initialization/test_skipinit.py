"""SkipInit against its formula written out on torch's own multi-head attention."""

import torch
from torch import Tensor, nn

from techniques.initialization.skipinit.technique import SkipInit
from tests.techniques.written_out import DEPTH, assert_they_train_alike, attention, mlp, trial_run, vit


def test_trains_as_the_formula_does() -> None:
    """x + a F(x), with a number for each branch."""
    ours, plain = SkipInit(0.25).model(vit(), trial_run()).double(), vit()
    numbers = [nn.Parameter(torch.full((1,), 0.25, dtype=torch.float64)) for _ in range(2 * DEPTH)]

    def formula(pictures: Tensor) -> Tensor:
        x = plain.patch_embed(pictures) + plain.pos_embed
        for block, a, b in zip(plain.blocks, numbers[::2], numbers[1::2], strict=True):
            x = x + a * attention(block, x)
            x = x + b * mlp(block, x)
        return plain.head(x.mean(1))

    theirs = [*numbers, *(each for name, each in plain.named_parameters() if "norm" not in name)]
    assert_they_train_alike(ours, ours.parameters(), formula, theirs)
