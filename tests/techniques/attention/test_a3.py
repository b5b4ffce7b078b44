"""A3's batched search against its heap, and its masks on Gaussian and on trained attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from techniques.attention.a3.heap import search
from techniques.attention.a3.technique import A3, candidates, greedy_scores, multiplications, near_best
from techniques.attention.shared.kept_pairs import pairs_of
from tests.runs import new_run


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 60), st.integers(0, 99))
def test_the_heap_takes_the_largest_and_the_smallest_products(keys, width, pops, seed):
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(width, generator=random, dtype=torch.float64)
    key = torch.randn(keys, width, generator=random, dtype=torch.float64)
    batched = greedy_scores(query[None], key, torch.ones(1, keys, dtype=torch.bool), torch.tensor([pops]))[0]
    found = search(query, key, pops)
    torch.testing.assert_close(torch.tensor(found.greedy, dtype=torch.float64), batched)
    assert found.products <= 2 * min(pops + width, keys * width)
    if pops >= keys * width:
        torch.testing.assert_close(batched, key @ query)


def test_each_query_has_its_own_number_of_pops_and_sees_its_own_keys():
    random = torch.Generator().manual_seed(1)
    query, key = (torch.randn(5, 3, generator=random, dtype=torch.float64) for _ in range(2))
    visible = torch.ones(5, 5).tril().bool()
    pops = torch.tensor([1, 1, 2, 2, 3])
    batched = greedy_scores(query, key, visible, pops)
    for i in range(5):
        alone = search(query[i], key[: i + 1], int(pops[i])).greedy
        torch.testing.assert_close(batched[i, : i + 1], torch.tensor(alone, dtype=torch.float64))
        assert not batched[i, i + 1 :].any()


def test_a_query_without_a_candidate_keeps_its_best_visible_key():
    greedy = torch.tensor([[-1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 2.0, -1.0]])
    visible = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    assert candidates(greedy, visible).tolist() == [[True, False, False], [False] * 3, [True, True, False]]


def test_near_best_is_by_softmax_weight():
    scores, among = torch.tensor([[0.0, -2.9, -3.1, 9.0]]), torch.tensor([[True, True, True, False]])
    assert near_best(scores, among, 0.05).tolist() == [[True, True, False, False]]
    assert near_best(scores, among, 1.0).tolist() == [[True, False, False, False]]


@pytest.mark.parametrize(
    ("share", "threshold", "among", "density", "mass"),
    [(0.5, 0.05, 0.33, 0.037, 0.66), (0.125, 0.1, 0.114, 0.016, 0.4)],
)
def test_on_independent_gaussians_it_keeps_a_part(share, threshold, among, density, mass):
    """320 keys of 64 numbers, queries of deviation 0.35: the floor that trained attention is to be above."""
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, 1, 60, 64, generator=random) * 0.35
    key, value = (torch.randn(1, 1, 320, 64, generator=random) for _ in range(2))
    pairs, own = pairs_of(query, key, None, False, 1.0), A3(share=share, threshold=threshold)
    kept = own.pair_mask(torch.nn.Identity(), pairs)
    seen = own.described(pairs, value, kept)
    assert seen["candidates"] == pytest.approx(among, abs=0.03)
    assert seen["density"] == pytest.approx(density, rel=0.25)
    assert seen["mass"] == pytest.approx(mass, abs=0.06)
    assert seen["products"] == pytest.approx((share * 320 + 64) / (320 * 64) + (among + density) / 2, rel=0.1)


def test_counted_multiplications():
    assert multiplications(320, 64, 160, 0, 0) == 2 * (160 + 64)
    assert multiplications(4, 3, 100, 2, 1) == 2 * 12 + 2 * 3 + 3
    assert multiplications(4, 3, 0, 0, 0) == 0


def test_training_is_the_baselines_to_the_bit_and_evaluation_is_not():
    runs = [new_run("gpt", stack, size="pico", recipe="classic", steps=3) for stack in ("baseline", "a3")]
    assert runs[0].train(3) == runs[1].train(3)
    batch = runs[0].next_batch()[0]
    outputs = []
    for run in runs:
        with run.predicting() as predict:
            outputs.append(predict(batch).logits)
    assert outputs[1].isfinite().all() and not torch.equal(*outputs)
    assert runs[0].train(2) == runs[1].train(2)
    shown = runs[1].probes()
    assert 0 < shown["a3.density"] <= shown["a3.candidates"] < 1 and runs[1].attachment.proven


def test_the_shortest_rows():
    for n in (1, 2):
        query = torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(n))
        assert A3().pair_mask(torch.nn.Identity(), pairs_of(query, -query, None, True, 0.5)).any(-1).all()


def test_a_negative_number_of_pops_is_refused():
    with pytest.raises(ValueError, match="0 or more, not -1"):
        search(torch.ones(2), torch.ones(3, 2), -1)
