"""ELSA's hashes against the whole matrix, its integer test, its thresholds, and its masks."""

import math
from functools import reduce

import pytest
import torch

from techniques.attention.elsa.hashing import (
    factors,
    hamming,
    multiplications,
    project,
    quantile_bias,
    signs,
    sizes,
)
from techniques.attention.elsa.technique import THRESHOLD, Elsa, estimates, farthest, least_scores
from techniques.attention.shared.kept_pairs import Pairs, pairs_of
from tests.runs import new_run


def pairs(n: int = 24, d: int = 16, causal: bool = False, seed: int = 0) -> Pairs:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(2, 2, n, d, generator=random) for _ in range(2))
    return pairs_of(query, key * torch.linspace(0.5, 2, n)[:, None], None, causal, d**-0.5)


def layer(threshold: float) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer(THRESHOLD, torch.tensor(threshold))
    return module


@pytest.mark.parametrize(
    ("width", "expected"), [(64, [4, 4, 4]), (16, [4, 4]), (12, [4, 3]), (10, [2, 5]), (7, [7]), (2, [2]), (1, [1])]
)
def test_factors_multiply_to_the_width_and_are_orthogonal(width, expected):
    assert sizes(width) == expected and math.prod(expected) == width
    whole = reduce(torch.kron, [each.double() for each in factors(width)])
    torch.testing.assert_close(whole @ whole.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-5)
    x = torch.randn(3, 5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(project(x, factors(width)), x @ whole.T)


def test_a_hash_of_64_numbers_takes_768_multiplications():
    assert multiplications(64) == 768 == round(3 * 64 ** (4 / 3))
    with pytest.raises(ValueError, match="1 number or more, not 0"):
        sizes(0)


def test_distances_are_those_of_bits():
    p = pairs()
    query, key = signs(p.query), signs(p.key)
    by_bits = (query[..., :, None, :] ^ key[..., None, :, :]).sum(-1)
    assert torch.equal(hamming(query, key), by_bits.float())


def test_the_bias_is_the_authors_and_orthogonal_signs_spread_less_than_gaussian_ones():
    assert quantile_bias(64) == pytest.approx(0.127, abs=0.002)
    random = torch.Generator().manual_seed(5)
    one, other = (torch.randn(4000, 64, generator=random) for _ in range(2))
    angle = torch.nn.functional.cosine_similarity(one, other).arccos()
    gaussian = torch.randn(64, 64, generator=random)
    errors = [
        math.pi / 64 * ((one @ h.T >= 0) != (other @ h.T >= 0)).sum(-1) - angle
        for h in (reduce(torch.kron, factors(64)), gaussian)
    ]
    assert errors[0].std() == pytest.approx(0.15, abs=0.01) and errors[1].std() > 1.2 * errors[0].std()


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.2, 0.6, 1.5])
def test_the_integer_test_is_the_float_test_for_every_distance_and_length(threshold):
    k = 16
    lengths = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0])
    key = torch.zeros(1, 1, 5, k)
    key[..., 0] = lengths
    p = pairs_of(torch.zeros(1, 1, k + 1, k), key, None, False, 1.0)
    distance = torch.arange(k + 1.0)[:, None].expand(1, 1, k + 1, 5)
    estimated = estimates(distance, p, 0.127)
    near = (estimated - threshold).abs() < 1e-5
    assert torch.equal((estimated > threshold) & ~near, (distance <= farthest(p, threshold, 0.127)) & ~near)


def test_no_query_knows_of_keys_to_come():
    p = pairs(causal=True)
    changed = p._replace(key=torch.cat([p.key[..., :-1, :], p.key[..., -1:, :] * 9], -2))
    one, other = (Elsa().pair_mask(layer(0.1), each) for each in (p, changed))
    assert torch.equal(one[..., :-1, :], other[..., :-1, :]) and not (one & ~p.visible).any()


def test_thresholds_are_the_least_score_of_relevant_keys():
    p = pairs(6, 8, causal=True)
    found = iter(least_scores(p, 1.0).flatten().tolist())
    for b, h, i in torch.cartesian_prod(*map(torch.arange, p.shape[:3])).tolist():
        key, query = p.key[b, h, : i + 1].double(), p.query[b, h, i].double()
        probability = (key @ query * p.scale).softmax(0)
        normalised = key @ query / (query.norm() * key.norm(dim=-1).max())
        relevant = probability > 1.0 / (i + 1)
        relevant[probability.argmax()] = True
        assert next(found) == pytest.approx(normalised[relevant].min().item(), abs=1e-5)


def test_a_higher_threshold_and_a_larger_bias_keep_fewer_and_more():
    p = pairs(40)
    kept = [Elsa().pair_mask(layer(t), p).sum() for t in (-1.0, 0.0, 0.3, 5.0)]
    assert kept[0] == 2 * 2 * 40 * 40 and kept[0] > kept[1] > kept[2] > kept[3] == 2 * 2 * 40
    biased = [Elsa(bias=bias).pair_mask(layer(0.1), p).sum() for bias in (0.0, 0.127, 0.25)]
    assert biased[0] < biased[1] < biased[2]


def test_thresholds_are_learned_before_an_evaluation_and_training_stays_dense():
    runs = [new_run("vit", stack, size="pico", recipe="classic", steps=2) for stack in ("baseline", "elsa", "elsa:p=2")]
    losses = [run.train(2) for run in runs]
    assert losses[0] == losses[1] == losses[2]
    few, fewer = (shown["density"] for shown in (run.technique.techniques["elsa"].probes(run) for run in runs[1:]))
    assert 0 < fewer <= few < 1
    assert not any(THRESHOLD in name for name, _ in runs[1].model.named_buffers())


@pytest.mark.parametrize("n", [1, 2])
def test_the_shortest_rows(n):
    assert Elsa().pair_mask(layer(2.0), pairs(n, causal=True)).any(-1).all()
