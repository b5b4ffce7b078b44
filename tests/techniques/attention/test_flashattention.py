"""The tile algorithm against float64 attention, and its counted accesses against the closed forms."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.sites import NotAttached
from techniques.attention.flashattention.technique import FlashAttention
from techniques.attention.flashattention.tiles import (
    Memory,
    Partial,
    backward,
    backward_accesses,
    block_sizes,
    forward,
    forward_accesses,
    merged,
    partial,
    standard_forward,
    standard_forward_accesses,
)
from tests.model.further_models import further_run
from tests.runs import new_run


def head(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, generator=random, dtype=torch.float64) for _ in range(3))


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by its definition in float64; rows without a key give zeros."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=1).nan_to_num(0.0) @ v


masks = st.sampled_from(["none", "causal", "random", "empty rows", "empty tiles"])


def mask_of(kind: str, n: int, seed: int) -> Tensor | None:
    random = torch.Generator().manual_seed(seed)
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(n, n, dtype=torch.bool).tril()
    mask = torch.rand(n, n, generator=random) < 0.5
    if kind == "empty rows":
        mask[::3] = False
    if kind == "empty tiles":
        mask[:, : n // 2] = False
    return mask


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 25), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), masks, st.randoms())
def test_output_and_gradients_are_exact_attention_for_any_tiles_in_any_order(n, d, rows, columns, kind, shuffler):
    q, k, v = (each.requires_grad_() for each in head(n, d))
    mask = mask_of(kind, n, seed=n)
    d_out = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = exact(q, k, v, mask)
    gradients = torch.autograd.grad(expected, (q, k, v), d_out)

    order = list(range(math.ceil(n / columns)))
    shuffler.shuffle(order)
    with torch.no_grad():
        result = forward(q, k, v, Memory(), rows, columns, mask=mask, order=order)
        found = backward(q, k, v, result, d_out, Memory(), rows, columns, mask=mask)
    torch.testing.assert_close(result.o, expected, rtol=1e-12, atol=1e-12)
    for got, want in zip(found, gradients, strict=True):
        torch.testing.assert_close(got, want.nan_to_num(0.0), rtol=1e-11, atol=1e-12)


def test_merging_is_associative_and_a_row_without_keys_is_its_neutral_element():
    q, k, v = head(4, 8)
    parts = [partial(q @ k[s].T, v[s]) for s in (slice(0, 1), slice(1, 3), slice(3, 4))]
    left = merged(merged(parts[0], parts[1]), parts[2])
    right = merged(parts[2], merged(parts[1], parts[0]))
    nothing = Partial(torch.full((4,), -math.inf), torch.zeros(4), torch.zeros(4, 8))
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
    for a, b in zip(merged(nothing, parts[1]), parts[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


def test_large_scores_do_not_overflow():
    q, k, v = head(16, 4)
    result = forward(q * 1e3, k * 1e3, v, Memory(), 4, 4)
    torch.testing.assert_close(result.o, exact(q * 1e3, k * 1e3, v, None))


@pytest.mark.parametrize(("n", "d", "fast"), [(64, 8, 256), (50, 8, 256), (96, 16, 1024), (33, 4, 100), (16, 8, 4096)])
def test_counted_accesses_equal_the_closed_forms(n, d, fast):
    q, k, v = head(n, d)
    rows, columns = block_sizes(fast, d)
    forth, back, plain = Memory(), Memory(), Memory()
    result = forward(q, k, v, forth, rows, columns)
    backward(q, k, v, result, torch.ones_like(q), back, rows, columns)
    torch.testing.assert_close(standard_forward(q, k, v, plain), result.o)
    assert forth.accesses == forward_accesses(n, d, columns)
    assert back.accesses == backward_accesses(n, d, columns)
    assert plain.accesses == standard_forward_accesses(n, d)


def test_accesses_fall_with_fast_memory_and_grow_with_the_square_of_length():
    """Theorem 2: slopes of -1 in log M and 2 in log N; standard attention has no M in it."""
    d = 64

    def accesses(n: int, fast: int) -> int:
        return forward_accesses(n, d, block_sizes(fast, d)[1])

    by_memory = math.log(accesses(2**14, 2**16) / accesses(2**14, 2**13)) / math.log(2**3)
    by_length = math.log(accesses(2**16, 2**14) / accesses(2**12, 2**14)) / math.log(2**4)
    assert by_memory == pytest.approx(-1, abs=0.02)
    assert by_length == pytest.approx(2, abs=0.02)


def test_block_sparse_accesses_shrink_with_the_share_of_kept_tiles():
    """Proposition 4: a block-diagonal mask of n / c tiles keeps c / n of the row visits."""
    n, d, size = 64, 8, 8
    q, k, v = head(n, d)
    blocks = torch.block_diag(*[torch.ones(size, size)] * (n // size)).bool()
    dense, sparse = Memory(), Memory()
    forward(q, k, v, dense, size, size)
    forward(q, k, v, sparse, size, size, mask=blocks)
    keys_and_values = 2 * n * d
    assert (dense.accesses - keys_and_values) == (n // size) * (sparse.accesses - keys_and_values)


def test_a_forgotten_rescaling_would_be_seen(monkeypatch):
    """Injected fault: merging without exp(m - m') is wrong as soon as a later block has a larger maximum."""
    from techniques.attention.flashattention import tiles

    def unscaled(a: Partial, b: Partial) -> Partial:
        total = a.l + b.l
        o = (a.l[:, None] * a.o + b.l[:, None] * b.o) / total[:, None]
        return Partial(torch.maximum(a.m, b.m), total, o)

    monkeypatch.setattr(tiles, "merged", unscaled)
    q, k, v = head(16, 4)
    assert not torch.allclose(forward(q, k, v, Memory(), 4, 4).o, exact(q, k, v, None))


@pytest.mark.parametrize(("name", "reason"), [("beit", "a mask that learns"), ("swin", "a mask that learns")])
def test_attention_that_the_tiles_do_not_take_is_refused(name, reason):
    with pytest.raises(ValueError, match=reason):
        further_run(name, FlashAttention())


@pytest.mark.parametrize("name", ["gpt2", "gpt_bigcode", "deit3"])
def test_models_train_by_the_tiles_also_with_dropout_and_shared_keys(name):
    losses = further_run(name, FlashAttention(), steps=2).train(2)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("baseline", ["bert", "gpt", "mae", "vit"])
@pytest.mark.parametrize("recipe", ["classic", "modern"])
def test_every_attention_of_the_baselines_is_ours(baseline, recipe):
    run = new_run(baseline, "flashattention", size="pico", recipe=recipe)
    blocks = run.anatomy.every_block
    assert [run.attachment.counts()[f"flashattention.{block.path}"] for block in blocks] == [1] * len(blocks)
    with Operators() as operators:
        run.train(1)
    calls = run.attachment.counts()["flashattention.attention"]
    assert operators.names["leantrain::flash_attention"] == calls >= len(blocks)
    assert operators.names["leantrain::flash_attention_backward"] == calls
    assert not any("scaled_dot_product" in name for name in operators.names)


def test_what_takes_the_attention_away_is_seen():
    """The stack's second technique computes another attention: the first says that it did nothing."""
    run = new_run("gpt", "flashattention+sanger", size="pico", recipe="classic")
    with pytest.raises(NotAttached, match="flashattention did nothing"):
        run.train(1)


class Operators(TorchDispatchMode):
    """How often each operator ran, by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.name().removesuffix(".default")] += 1
        return func(*args, **(kwargs or {}))
