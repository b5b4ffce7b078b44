"""Masked attention by blocks: the same outputs, gradients and dropout as pair by pair."""

import pytest
import torch
from torch import Tensor

from techniques.attention.elsa.technique import Elsa
from techniques.attention.sanger.technique import LARGEST, SEEN, Sanger
from techniques.attention.shared import by_blocks
from techniques.attention.shared.block_attention import block_attention
from techniques.attention.shared.block_maxima import by_rows_of_blocks, of_blocks
from techniques.attention.shared.kept_pairs import Pairs, pairs_of


def banded(n: int, reach: int) -> tuple[Pairs, Tensor, Tensor]:
    """Pairs, values, and a mask of the keys near each query; one query keeps none."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, n, 8, generator=random, dtype=torch.float64) for _ in range(3))
    place = torch.arange(n)
    kept = (place - place[:, None]).abs().expand(2, 2, n, n) <= reach
    kept = kept & (torch.rand(2, 2, n, n, generator=random) < 0.7)
    kept[0, 1, 5] = False
    return pairs_of(query.requires_grad_(), key.requires_grad_(), None, False, 0.3), value.requires_grad_(), kept


@pytest.mark.parametrize("technique", [Sanger, Elsa])
def test_blocks_without_a_kept_pair_are_skipped_and_the_rest_is_as_it_was(technique, monkeypatch):
    pairs, value, kept = banded(400, 9)
    shares: list[float] = []

    def watched(query: Tensor, key: Tensor, value: Tensor, blocks: Tensor, **given: object) -> Tensor:
        shares.append(blocks.float().mean().item())
        return block_attention(query, key, value, blocks, **given)

    monkeypatch.setattr(by_blocks, "block_attention", watched)
    d_out = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view(value.shape)
    found = []
    for execution in ("pairs", "blocks"):
        output = technique(execution=execution).attend(pairs, value, kept, 0.0)
        gradients = torch.autograd.grad(output, [pairs.query, pairs.key, value], d_out)
        found.append([output, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    (share,) = shares
    assert share == pytest.approx(19 / 49)  # of 7 x 7 blocks those on three diagonals


def test_dropout_keeps_a_share_of_the_weights_and_both_passes_drop_the_same():
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, 6, 3, generator=random, dtype=torch.float64) for _ in range(2))
    blocks = torch.tensor([[True, False, True], [True, True, True], [False, False, True]]).expand(1, 2, 3, 3)
    identity = torch.eye(6, dtype=torch.float64).expand(1, 2, 6, 6)

    def dropped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        torch.manual_seed(3)
        return block_attention(query, key, value, blocks, scale=0.9, block=2, dropout_p=0.4)

    weights, some = block_attention(query, key, identity, blocks, scale=0.9, block=2), dropped(query, key, identity)
    stays = some != 0
    torch.testing.assert_close(some[stays], weights[stays] / 0.6)
    assert 0.3 < (stays.sum() / (weights != 0).sum()).item() < 0.9
    assert torch.autograd.gradcheck(dropped, [each.requires_grad_() for each in (query, key, identity.clone())])
    assert not block_attention(query, key, identity, blocks, scale=0.9, block=2, dropout_p=1.0).any()


def test_biases_of_scores_are_refused_and_what_hides_is_none():
    query = torch.randn(1, 1, 4, 2, generator=torch.Generator().manual_seed(0))
    kept = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    hides = torch.zeros(4, 4).masked_fill(~kept[0, 0], torch.finfo(torch.float32).min)
    own = Sanger(execution="blocks")
    hidden = pairs_of(query, query, hides[None, None], False, 1.0)
    torch.testing.assert_close(own.attend(hidden, query, kept, 0.0), Sanger().attend(hidden, query, kept, 0.0))
    with pytest.raises(ValueError, match="adds biases to its scores"):
        own.attend(pairs_of(query, query, hides[None, None] + 0.5, False, 1.0), query, kept, 0.0)


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("execution", ["pairs", "blocks"])
def test_no_token_and_one(tokens, execution):
    own = Sanger(execution=execution)
    layer = torch.nn.Identity()
    own.now = "", layer
    for name in (LARGEST, SEEN):
        layer.register_buffer(name, torch.zeros(2))
    query, key, value = (torch.randn(2, 3, tokens, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    output = own.attention(query, key, value, mask=None, causal=False, scale=0.5, dropout_p=0.0)
    torch.testing.assert_close(output, value)


def test_blocks_of_no_token_are_not_predicted():
    none = torch.zeros(1, 1, 0, 4)
    for predict in (of_blocks, lambda q, k: by_rows_of_blocks(q, k, lambda *_: none)):
        with pytest.raises(ValueError, match="one query and one key or more"):
            predict(none, none)
