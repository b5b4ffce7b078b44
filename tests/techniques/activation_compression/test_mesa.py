"""Mesa's codes of a group without a range, and its running ranges where the number of heads changes."""

import torch

from techniques.activation_compression.mesa.codes import decode, encode, ranges
from techniques.activation_compression.mesa.technique import Mesa


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_group_without_a_range_comes_back_to_the_bit() -> None:
    x = torch.full((4, 2, 3), 0.7)
    clip = ranges(x)
    assert torch.equal(decode(encode(x, clip, noise()), clip), x)


def test_another_number_of_heads_begins_anew() -> None:
    own = Mesa()
    own.follow("block.0", torch.ones(2, 4))
    assert torch.equal(own.follow("block.0", torch.zeros(2, 2)), torch.zeros(2, 2))
