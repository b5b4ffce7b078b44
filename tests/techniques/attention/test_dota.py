"""DOTA's detector against its formula, what it learns, and loads of keys."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.stack import Stack
from techniques.attention.dota.loads import in_order, out_of_order
from techniques.attention.dota.technique import (
    KEY,
    PROJECTION,
    QUERY,
    Dota,
    detected,
    detector_cost,
    fake_quantised,
    ternary,
)
from techniques.attention.shared.kept_pairs import largest_kept, pairs_of
from tests.model.further_models import further_run
from tests.runs import new_run


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_projection_has_three_values_in_their_shares_and_keeps_products():
    p = ternary(2000, 12, generator())
    size = (3 / 12) ** 0.5
    assert set(p.unique().tolist()) == {-size, 0.0, size}
    assert (p == 0).float().mean() == pytest.approx(2 / 3, abs=0.01)
    x, y = torch.randn(2, 40, generator=generator(1), dtype=torch.float64)
    errors = {}
    for k in (4, 64):
        products = [(x @ q) @ (y @ q) for q in (ternary(40, k, generator(s)).double() for s in range(400))]
        off = torch.stack(products) - x @ y
        assert abs(off.mean()) < 4 * off.std() / 20
        errors[k] = off.var()
    assert errors[4] / errors[64] == pytest.approx(16, rel=0.4)


def test_rounding_has_fifteen_levels_and_passes_gradients():
    x = torch.linspace(-2, 2, 999, dtype=torch.float64, requires_grad=True)
    y = fake_quantised(x, 4)
    assert len(y.unique()) == 15 and (y - x).abs().max() <= 1 / 7 + 1e-12
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert not fake_quantised(torch.zeros(3), 4).any()


def test_detected_scores_are_the_formula_in_float64_head_by_head():
    x = torch.randn(2, 5, 8, generator=generator(2))
    p, query, key = ternary(8, 3, generator(3)), *torch.randn(2, 4, 3, 3, generator=generator(4))
    found = detected(x, p, query, key, 16).double()
    for h in range(4):
        narrow = x.double() @ p.double()
        expected = (narrow @ query[h].double()) @ (narrow @ key[h].double()).transpose(-2, -1)
        torch.testing.assert_close(found[:, h], expected, rtol=1e-3, atol=5e-3)


def test_a_trained_detector_finds_more_of_the_largest_scores_than_a_random_one():
    x = torch.randn(4, 24, 16, generator=generator(5))
    mix = torch.randn(16, 16, generator=generator(6)) / 4
    pairs = pairs_of((x @ mix)[:, None], x[:, None], None, False, 1.0)
    best = largest_kept(pairs.scores, pairs.visible.expand(pairs.shape), 4)
    weights = [(torch.randn(1, 8, 8, generator=generator(s)) / 8**0.5).requires_grad_() for s in (7, 8)]
    projection, optimizer = ternary(16, 8, generator(9)), torch.optim.Adam(weights, lr=0.03)
    errors, recalls = [], []
    for _ in range(150):
        scores = detected(x, projection, *weights, bits=4)
        error = (scores - pairs.scores).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
        recalls.append((largest_kept(scores, best | True, 4) & best).sum().item() / best.sum().item())
    assert errors[-1] < 0.7 * errors[0] and recalls[-1] > recalls[0] + 0.15


def test_training_lowers_the_detectors_error():
    own = Dota()
    run = new_run("gpt", Stack({"dota": own}), size="pico", recipe="classic", task="adapt", steps=20)
    batch, _ = run.next_batch()
    errors = []
    for steps in (19, 1):
        run.baseline.forward(run.model, batch)
        errors.append(torch.stack(list(own.errors.values())).mean().item())
        own.errors.clear()
        run.train(steps)
    assert errors[1] < errors[0]


def test_the_added_loss_draws_the_model_only_where_it_is_told_to():
    for pull in (False, True):
        own = Dota(pull=pull)
        run = new_run("vit", Stack({"dota": own}), size="pico", recipe="classic", task="adapt", steps=1)
        run.baseline.forward(run.model, run.next_batch()[0])
        sum(own.errors.values()).backward()
        got = {name for name, each in run.model.named_parameters() if each.grad is not None}
        detectors = {name for name, _ in run.model.named_parameters() if name.endswith((QUERY, KEY))}
        assert len(detectors) == 2 * run.anatomy.depth and (got == detectors) == (not pull)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_sharing_loads_less_and_never_less_than_the_union(queries, keys, together, share, seed):
    mask = torch.rand(queries, keys, generator=generator(seed)) < share
    union = sum(int(part.any(0).sum()) for part in mask.split(together))
    assert union <= out_of_order(mask, together) <= int(mask.sum())
    assert union <= in_order(mask, together) <= int(mask.sum())
    if together == 1:
        assert out_of_order(mask, 1) == in_order(mask, 1) == int(mask.sum())


def test_out_of_order_serves_what_most_share_first():
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]).bool()
    assert in_order(mask, 3) == 5  # 0 and twice 1, then 1, 2 and 3
    assert out_of_order(mask, 3) == 4  # 1 for all, then 0, 2 and 3
    whole = torch.ones(4, 6, dtype=torch.bool)
    assert out_of_order(whole, 4) == in_order(whole, 4) == 6
    with pytest.raises(ValueError, match="1 query or more"):
        in_order(mask, 0)


def test_a_detector_is_cheap_on_long_rows():
    costs = [detector_cost(n, 768, 12, 16, 4) for n in (128, 1024, 4096)]
    assert costs[0] > costs[1] > costs[2] and costs[1] < 0.01
    assert detector_cost(1024, 768, 12, 16, 16) == 16 * costs[1]


@pytest.mark.parametrize("name", ["gpt_neox", "t5", "deit3"])
def test_other_models_get_a_detector_for_every_attention(name):
    own = Dota()
    run = further_run(name, Stack({"dota": own}))
    run.train(1)
    assert run.attachment.proven and len(own.acts) == len(run.anatomy.every_block)
    assert run.anatomy.blocks[0].attention.module.get_buffer(PROJECTION).shape == (32, 2)


def test_a_retention_that_rounds_to_no_key_is_refused_and_pooled_keys_are():
    with pytest.raises(ValueError, match=r"retention=0\.02 of 16 keys is none: give 0\.0625 or more"):
        new_run("gpt", Stack({"dota": Dota(retention=0.02)}), size="pico", recipe="classic", task="adapt", steps=1)
    with pytest.raises(ValueError, match="take a model without pooled or rearranged tokens"):
        further_run("pvt", Stack({"dota": Dota()}))


def test_keys_of_a_cache_are_refused_and_whole_rows_are_not():
    run = further_run("gpt2", Stack({"dota": Dota()}))
    model, rows = run.model.eval(), torch.arange(3, 11)[None]
    with torch.no_grad():
        whole = model(rows, use_cache=True)
        torch.testing.assert_close(model(rows, use_cache=False).logits, whole.logits)
        with pytest.raises(ValueError, match=r"1 came into .* for 1 queries and 9 keys: .* use_cache=False"):
            model(rows[:, :1], past_key_values=whole.past_key_values, use_cache=True)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_what_the_detectors_learn_does_not_shrink_the_models_own_step(clip):
    weights = {}
    for weight in (1.0, 1e4):
        run = further_run("gpt2", Stack({"dota": Dota(weight=weight)}))
        run.recipe = replace(run.recipe, gradient_clip=clip)
        run.train(1)
        detectors = {name for name in dict(run.model.named_parameters()) if ".dota_" in name}
        assert len(detectors) == 8
        weights[weight] = {name: own.detach() for name, own in run.model.named_parameters() if name not in detectors}
    assert all(torch.equal(own, weights[1e4][name]) for name, own in weights[1.0].items())


def test_one_key_for_all_heads_and_biases_that_hide_pairs_train():
    for name in ("falcon", "t5"):
        run = further_run(name, Stack({"dota": Dota()}))
        assert all(loss == loss for loss in run.train(2))
