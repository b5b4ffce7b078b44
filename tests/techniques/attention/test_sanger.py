"""Sanger's released cost model, its moving means, its shortest rows, and modern recipes."""

import pytest
import torch

from techniques.attention.sanger.cost import layer_s
from techniques.attention.sanger.technique import LARGEST, Sanger, quantised
from techniques.attention.shared.kept_pairs import Pairs, pairs_of
from tests.runs import new_run


def pairs(n: int = 48, d: int = 16, causal: bool = False, seed: int = 0) -> Pairs:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(2, 2, n, d, generator=random) * 1.5 for _ in range(2))
    return pairs_of(query, key, None, causal, d**-0.5)


def test_levels_are_odd_and_symmetric_and_what_is_beyond_is_cut_off():
    x = torch.linspace(-3, 3, 4001)
    levels = quantised(x, torch.tensor(2.0), 4).unique()
    assert len(levels) == 15 and levels.max() == 2.0 and torch.equal(levels, -levels.flip(0))


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
