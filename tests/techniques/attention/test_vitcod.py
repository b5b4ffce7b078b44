"""ViTCoD's masks by loops over rows, its two parts against one softmax, its auto-encoder, the released simulator."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.stack import Stack
from techniques.attention.shared.kept_pairs import kept_attention, pairs_of
from techniques.attention.vitcod.cost import compute_cycles, decode_cycles, total_cycles
from techniques.attention.vitcod.masks import informative, polarised, split_attention
from techniques.attention.vitcod.probes import DEIT_TINY
from techniques.attention.vitcod.technique import MASK, AutoEncoder, Vitcod
from tests.runs import new_run


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.integers(0, 2), st.integers(0, 99))
def test_rows_keep_the_fewest_largest_entries_that_hold_the_share(tokens, information, leading, seed):
    average = torch.randn(2, tokens, tokens, generator=generator(seed), dtype=torch.float64).mul(2).softmax(-1)
    mask = informative(average, information, leading)
    for head, row in torch.cartesian_prod(torch.arange(2), torch.arange(tokens)).tolist():
        expected, total = set(range(min(leading, tokens))), 0.0
        if row < leading:
            expected = set(range(tokens))
        for index in average[head, row].argsort(descending=True).tolist():
            if total >= information * average[head, row].sum().item():
                break
            expected.add(index)
            total += average[head, row, index].item()
        found = set(mask[head, row].nonzero()[:, 0].tolist())
        assert found == expected or information == 1.0  # whose sum is one up to a rounding
    assert mask.any(-1).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.6]), st.booleans(), st.integers(0, 99))
def test_two_parts_in_another_order_are_one_softmax(tokens, density, share, causal, seed):
    random = generator(seed)
    query, key, value = (torch.randn(tokens, 4, generator=random, dtype=torch.float64) * 3 for _ in range(3))
    pairs = pairs_of(query, key, None, causal, 0.5)
    mask = torch.rand(tokens, tokens, generator=random) < density
    expected = kept_attention(pairs, value, mask & pairs.visible)
    torch.testing.assert_close(split_attention(pairs, value, mask, share), expected, rtol=1e-12, atol=1e-13)


def test_global_tokens_come_first_and_hold_most_of_a_polarised_mask():
    mask = torch.eye(8, dtype=torch.bool)
    mask[:, [5, 2]] = True
    order, columns = polarised(mask, 0.25)
    assert columns == 2 and order.tolist() == [2, 5, 0, 1, 3, 4, 6, 7]
    assert mask[:, order[:2]].sum() / mask.sum() > mask[:, :2].sum() / mask.sum()
    permuted = mask[order][:, order]
    assert permuted.sum() == mask.sum() and torch.equal(permuted.sum(1).sort().values, mask.sum(1).sort().values)


@pytest.mark.parametrize(("heads", "few"), [(12, 6), (3, 2), (1, 1)])
def test_an_auto_encoder_is_linear_over_heads(heads, few):
    coder = AutoEncoder(heads).double()
    x = torch.randn(2, heads, 5, 4, dtype=torch.float64, generator=generator(0))
    assert coder[0].out_features == few
    matrix = coder[1].weight @ coder[0].weight
    shift = coder[1].weight @ coder[0].bias + coder[1].bias
    expected = torch.einsum("gh,bhnd->bgnd", matrix, x) + shift[None, :, None, None]
    torch.testing.assert_close(coder(x), expected)


def test_the_released_simulator_is_replayed_to_the_cycle():
    assert sum(compute_cycles(*layer) for layer in DEIT_TINY) == 4709
    assert 12 * decode_cycles() == 4728
    assert total_cycles(DEIT_TINY) == 9437
    assert compute_cycles(70, 2478) == 840 + 767
    with pytest.raises(ValueError, match="leave a part without a line"):
        compute_cycles(0, 100)


def test_masks_come_at_half_of_the_run_and_stay_when_it_is_resumed(tmp_path):
    def start():
        return new_run("vit", "vitcod", size="pico", recipe="classic", task="adapt", steps=4)

    run = start()
    masks = [block.attention.module.get_buffer(MASK) for block in run.anatomy.every_block]
    run.train(1)
    assert all(mask.all() for mask in masks)
    run.train(1)
    assert all(not mask.all() and mask.any(-1).all() for mask in masks)
    run.save(tmp_path / "half")
    resumed = start()
    resumed.load(tmp_path / "half")
    assert torch.equal(resumed.anatomy.blocks[0].attention.module.get_buffer(MASK), masks[0])
    assert run.train(2) == resumed.train(2)
    shown = run.technique.techniques["vitcod"].probes(run)
    assert shown["global_tokens"] <= shown["in_global_columns"] and 0 < shown["density"] < 0.8


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
