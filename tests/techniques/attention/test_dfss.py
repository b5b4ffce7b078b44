"""N of M consecutive scores against a loop over groups, the packed form, and the bound on what is kept."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.attention.dfss.technique import Dfss, pattern_of
from techniques.attention.shared.kept_pairs import kept_attention, pairs_of
from techniques.shared.sparse.n_of_m import largest_of_each, packed, unpacked
from tests.runs import new_run


def by_loops(scores: Tensor, n: int, m: int) -> Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for row, of_row in zip(scores, kept, strict=True):
        for first in range(0, len(row), m):
            group = row[first : first + m].tolist()
            for place in sorted(range(len(group)), key=lambda i: -group[i])[:n]:  # stable: of equal ones the first
                of_row[first + place] = True
    return kept


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 13), st.sampled_from([(1, 2), (2, 4), (1, 4), (3, 3)]), st.integers(0, 99), st.booleans())
def test_of_each_group_the_largest_are_kept(keys, pattern, seed, ties):
    scores = torch.randn(3, keys, generator=torch.Generator().manual_seed(seed))
    scores = scores.round() if ties else scores
    assert torch.equal(largest_of_each(scores, *pattern), by_loops(scores, *pattern))


@pytest.mark.parametrize("pattern", [(1, 2), (2, 4)])
def test_packed_scores_come_back_to_their_places(pattern):
    scores = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    form = packed(scores, *pattern)
    assert form.values.shape == (2, 5, 8) and form.places.dtype == torch.uint8
    kept = largest_of_each(scores, *pattern)
    assert torch.equal(unpacked(form, *pattern, rest=-math.inf), scores.masked_fill(~kept, -math.inf))
    assert form.bytes == scores.numel() * 2 * 9 / 16
    with pytest.raises(ValueError, match="no whole groups"):
        packed(scores[..., :7], *pattern)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_keeps_half_of_the_probability_and_the_output_is_of_the_kept(causal, dtype):
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 2, 10, 8, generator=random).to(dtype) for _ in range(3))
    pairs = pairs_of(query, key, None, causal, 0.35)
    kept = Dfss().pair_mask(torch.nn.Identity(), pairs)
    scores = pairs.scores.float().masked_fill(~pairs.visible, -math.inf)
    assert ((scores.softmax(-1) * kept).sum(-1) >= 0.5 - 1e-3).all()
    assert not (kept & ~pairs.visible).any()
    n, m = (1, 2) if dtype == torch.float32 else (2, 4)
    expected = by_loops(pairs.scores.masked_fill(~pairs.visible, -math.inf).flatten(0, -2), n, m)
    assert torch.equal(kept, expected.view_as(kept) & pairs.visible)
    output = kept_attention(pairs, value, kept).float()
    weights = scores.masked_fill(~kept, -math.inf).softmax(-1)
    torch.testing.assert_close(output, weights @ value.float(), rtol=5e-2, atol=2e-2)


def test_padding_takes_no_ones_place():
    query, key, _ = (torch.ones(1, 1, 4, 2) for _ in range(3))
    padding = torch.tensor([True, False, False, True])
    kept = Dfss().pair_mask(torch.nn.Identity(), pairs_of(query, key * 2, padding.expand(1, 1, 4, 4), False, 1.0))
    assert torch.equal(kept, padding.expand(1, 1, 4, 4))


def test_half_is_kept_and_adapting_runs_under_every_recipe():
    run = new_run("vit", "dfss", size="pico", recipe="classic", task="adapt", steps=2)
    run.train(2)
    assert run.probes()["dfss.density"] == pytest.approx(0.5, abs=0.04)
    run = new_run("gpt", "dfss", size="pico", recipe="modern", task="adapt", steps=2)
    run.train(2)
    assert 0.5 < run.probes()["dfss.density"] < 0.6  # the first queries of a causal row see few keys


def test_bad_settings_say_what_to_do():
    assert pattern_of("auto", torch.float16) == (2, 4)
    with pytest.raises(ValueError, match="of 2 scores 1 to 2 can be kept, not 3"):
        largest_of_each(torch.ones(4), 3, 2)
