"""Sanger's prediction against integer arithmetic one vector at a time, pack and split, and the released cost model."""

import math

import pytest
import torch
from torch import Tensor

from suite.loop.stack import Stack
from techniques.attention.sanger.cost import layer_s
from techniques.attention.sanger.packing import load_balance, sub_rows
from techniques.attention.sanger.technique import LARGEST, Sanger, predicted, prediction_mask, quantised, unit
from techniques.attention.shared.kept_pairs import Pairs, pairs_of, worth
from tests.model.further_models import further_run
from tests.runs import new_run


def pairs(n: int = 48, d: int = 16, causal: bool = False, seed: int = 0) -> Pairs:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(2, 2, n, d, generator=random) * 1.5 for _ in range(2))
    return pairs_of(query, key, None, causal, d**-0.5)


def largest_of(p: Pairs) -> Tensor:
    return torch.stack([unit(x).abs().amax() for x in (p.query, p.key)])


def reference(p: Pairs, bits: int) -> Tensor:
    """Predicted probabilities, one vector at a time, with integers of Python."""
    levels = 2 ** (bits - 1) - 1
    largest = [max(abs(v) for v in _units(x)[0]) for x in (p.query, p.key)]
    scores = torch.empty(p.shape, dtype=torch.float64)
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            sides = [
                [
                    (
                        math.sqrt(sum(v * v for v in row)),
                        [
                            max(-levels, min(levels, round(v / math.sqrt(sum(u * u for u in row)) * levels / one)))
                            for v in row
                        ],
                    )
                    for row in x[b, h].double().tolist()
                ]
                for x, one in zip((p.query, p.key), largest, strict=True)
            ]
            for i, (length, q) in enumerate(sides[0]):
                for j, (other, k) in enumerate(sides[1]):
                    product = sum(map(int.__mul__, q, k)) * largest[0] * largest[1] / levels**2
                    scores[b, h, i, j] = product * length * other * p.scale
    return scores.masked_fill(~p.visible, -math.inf).softmax(-1)


def _units(x: Tensor) -> tuple[list[float]]:
    rows = x.double().flatten(0, -2).tolist()
    return ([v / math.sqrt(sum(u * u for u in row)) for row in rows for v in row],)


@pytest.mark.parametrize(("bits", "causal"), [(4, False), (4, True), (8, False)])
def test_the_mask_is_that_of_integer_products(bits, causal):
    p = pairs(12, 8, causal)
    probability = reference(p, bits)
    expected = (probability > 0.05) & p.visible
    expected |= ~expected.any(-1, keepdim=True) & p.visible
    sure = ((probability - 0.05).abs() > 1e-6).all(-1, keepdim=True)
    mask = prediction_mask(p, largest_of(p), bits, 0.05)
    assert mask.any() and not mask.all()
    assert torch.equal(mask & sure, expected & sure)


def test_levels_are_odd_and_symmetric_and_what_is_beyond_is_cut_off():
    x = torch.linspace(-3, 3, 4001)
    levels = quantised(x, torch.tensor(2.0), 4).unique()
    assert len(levels) == 15 and levels.max() == 2.0 and torch.equal(levels, -levels.flip(0))


def test_more_bits_predict_more_of_the_exact_mask():
    p = pairs(64)
    value = torch.randn(2, 2, 64, 16, generator=torch.Generator().manual_seed(3))
    exact = p.scores.softmax(-1) > 0.04
    agreed = [
        (prediction_mask(p, largest_of(p), bits, 0.04, "nothing") & exact).sum().item() / exact.sum().item()
        for bits in (2, 4, 8)
    ]
    assert agreed[0] < 0.7 and agreed[0] < agreed[1] < agreed[2] and agreed[2] > 0.98
    masks = [prediction_mask(p, largest_of(p), 4, threshold) for threshold in (0.0, 0.01, 0.04)]
    densities = [worth(p, value, mask).density for mask in masks]
    assert densities[0] == 1.0 and densities[0] > densities[1] > densities[2]


def test_the_threshold_needs_no_probabilities():
    """p > T where s > m + ln(T l): what a second pass over the scores asks."""
    p = pairs(32)
    scores = predicted(p, largest_of(p), 4)
    most = scores.amax(-1, keepdim=True)
    total = (scores - most).exp().sum(-1, keepdim=True)
    by_score = scores > most + (0.03 * total).log()
    near = (scores.softmax(-1) - 0.03).abs() < 1e-6
    assert torch.equal(by_score & ~near, prediction_mask(p, largest_of(p), 4, 0.03, "nothing") & ~near)


def test_the_prediction_does_not_depend_on_the_order_of_tokens():
    p, order = pairs(20), torch.randperm(20, generator=torch.Generator().manual_seed(1))
    shuffled = p._replace(query=p.query[:, :, order], key=p.key[:, :, order])
    one, other = prediction_mask(p, largest_of(p), 4, 0.06), prediction_mask(shuffled, largest_of(p), 4, 0.06)
    assert torch.equal(one[:, :, order][..., order], other)


def test_pack_and_split_is_a_partition_and_balances():
    mask = torch.rand(40, 150, generator=torch.Generator().manual_seed(0)) < 0.2
    mask[3] = False
    mask[5, :64] = True
    parts = sub_rows(mask)
    placed = torch.zeros(mask.shape)
    for row, keys in parts:
        assert 1 <= len(keys) <= 16
        placed[row, list(keys)] += 1
    assert torch.equal(placed, mask.float())
    assert load_balance(mask) == pytest.approx(mask.sum().item() / (16 * len(parts)))
    assert 0 < load_balance(mask, split=False) < load_balance(mask) <= 1
    assert load_balance(torch.ones(4, 64, dtype=torch.bool)) == 1.0
    with pytest.raises(ValueError, match="keeps no pair"):
        load_balance(mask & False)
    with pytest.raises(ValueError, match="1 element or more"):
        sub_rows(mask, elements=0)


@pytest.mark.parametrize(
    ("density", "balance", "released", "corrected"), [(0.087, 0.56, 0.992, 1.241), (0.2, 0.65, 1.097, 1.301)]
)
def test_the_released_cost_model_and_what_is_left_without_its_slip(density, balance, released, corrected):
    assert layer_s(512, density, balance, as_released=True) * 1e3 == pytest.approx(released, abs=1e-3)
    assert layer_s(512, density, balance) * 1e3 == pytest.approx(corrected, abs=1e-3)
    assert layer_s(512, 1.0, 1.0) * 1e3 == pytest.approx(1.573, abs=1e-3)
    with pytest.raises(ValueError, match="shares in"):
        layer_s(512, 0.0, 1.0)


def test_moving_means_fill_at_the_first_step_and_stay_in_evaluation():
    run = new_run("gpt", "sanger", size="pico", recipe="classic", task="adapt", steps=4)
    module = run.anatomy.blocks[0].attention.module
    means = module.get_buffer(LARGEST)
    run.evaluate()
    assert not means.any()
    run.train(1)
    first = means.clone()
    assert (first > 0).all() and (first <= 1).all()
    run.evaluate()
    assert torch.equal(means, first)
    run.train(1)
    assert not torch.equal(means, first) and (means / first - 1).abs().max() < 1e-3


@pytest.mark.parametrize("n", [1, 2])
def test_the_shortest_rows_keep_a_key(n):
    p = pairs(n)
    own = Sanger(empty="nothing")
    layer = torch.nn.Module()
    layer.register_buffer("sanger_largest", torch.zeros(2))
    layer.register_buffer("sanger_seen", torch.zeros(2))
    assert own.pair_mask(layer, p).any(-1).all() or n == 2
    assert Sanger().pair_mask(layer, p).any(-1).all()


def test_a_run_shows_what_its_masks_are_worth_and_modern_recipes_run():
    run = new_run("bert", "sanger", size="pico", recipe="modern", task="adapt", steps=2)
    run.train(2)
    shown = run.probes()
    assert 0 < shown["sanger.density"] < 1 and shown["sanger.density"] < shown["sanger.mass"] < 1
    assert 0 < shown["sanger.load_balance"] <= 1 and shown["sanger.blocks"] == 1.0


@pytest.mark.parametrize("name", ["gpt_neox", "falcon_grouped", "deit3", "t5"])
def test_other_models_attend_by_the_masks_and_cross_attention_stays_dense(name):
    own = Sanger()
    run = further_run(name, Stack({"sanger": own}))
    run.train(1)
    assert all(act.count for act in own.acts.values()) and run.attachment.proven
