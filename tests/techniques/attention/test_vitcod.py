"""ViTCoD's two parts against one softmax, the released simulator, and rows that do not fit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.stack import Stack
from techniques.attention.shared.kept_pairs import kept_attention, pairs_of
from techniques.attention.vitcod.cost import compute_cycles, decode_cycles, total_cycles
from techniques.attention.vitcod.masks import informative, polarised, split_attention
from techniques.attention.vitcod.probes import DEIT_TINY
from techniques.attention.vitcod.technique import Vitcod
from tests.runs import new_run


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.6]), st.booleans(), st.integers(0, 99))
def test_two_parts_in_another_order_are_one_softmax(tokens, density, share, causal, seed):
    random = generator(seed)
    query, key, value = (torch.randn(tokens, 4, generator=random, dtype=torch.float64) * 3 for _ in range(3))
    pairs = pairs_of(query, key, None, causal, 0.5)
    mask = torch.rand(tokens, tokens, generator=random) < density
    expected = kept_attention(pairs, value, mask & pairs.visible)
    torch.testing.assert_close(split_attention(pairs, value, mask, share), expected, rtol=1e-12, atol=1e-13)


def test_the_released_simulator_is_replayed_to_the_cycle():
    assert sum(compute_cycles(*layer) for layer in DEIT_TINY) == 4709
    assert 12 * decode_cycles() == 4728
    assert total_cycles(DEIT_TINY) == 9437
    assert compute_cycles(70, 2478) == 840 + 767
    with pytest.raises(ValueError, match="leave a part without a line"):
        compute_cycles(0, 100)


def test_without_an_auto_encoder_or_without_masks_the_rest_runs():
    for own, name in ((Vitcod(autoencoder=False), "makes masks"), (Vitcod(information=1.0), "vitcod_query")):
        run = new_run("vit", Stack({"vitcod": own}), size="pico", recipe="classic", task="adapt", steps=2)
        run.train(2)
        assert any(name in site for site in run.attachment.sites)
        assert any("vitcod_query" in each for each, _ in run.model.named_parameters()) == own.autoencoder


def test_rows_of_another_length_are_refused():
    run = new_run("gpt", "vitcod", size="pico", recipe="classic", task="adapt", steps=2)
    with pytest.raises(ValueError, match="are of 16 tokens and do not fit rows of 8"):
        run.model(input_ids=torch.zeros(1, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match="share of attention that a row keeps"):
        informative(torch.ones(2, 2), 0.0)
    with pytest.raises(ValueError, match="more than this share"):
        polarised(torch.ones(2, 2), 1.0)
