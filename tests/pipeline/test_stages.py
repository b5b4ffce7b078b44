"""A model in stages: what it computes is the whole model's, whoever has which parameters; and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suite.pipeline.stages import HandedOn, NotDivisible, balanced, cut
from tests.runs import new_run


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 4))
def test_the_largest_share_is_as_small_as_can_be(costs, stages):
    if len(costs) < stages:
        with pytest.raises(NotDivisible, match="take fewer ranks or a deeper model"):
            balanced(costs, stages)
        return
    ranges = balanced(costs, stages)
    assert [at for start, end in ranges for at in range(start, end)] == list(range(len(costs)))
    assert all(start < end for start, end in ranges)

    def largest(cuts):
        ends = [0, *cuts, len(costs)]
        return max(sum(costs[start:end]) for start, end in itertools.pairwise(ends))

    best = min(map(largest, itertools.combinations(range(1, len(costs)), stages - 1)))
    assert max(sum(costs[start:end]) for start, end in ranges) == best


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_stages_one_after_the_other_compute_the_model(baseline):
    run = new_run(baseline, size="pico", recipe="classic")
    batch, _ = run.next_batch()
    loss = run.forward(batch)
    loss.backward()
    expected = {name: each.grad.clone() for name, each in run.model.named_parameters() if each.grad is not None}
    found: dict[str, torch.Tensor] = {}
    hidden, gradient, ran = None, None, []
    for stage in range(2):
        own = new_run(baseline, size="pico", recipe="classic")
        stages = cut(own.model, 2, lambda own=own: own.trial(own.model).logits, 2)
        stages.keep(own.model, [stage])
        with stages.running(stage, hidden):
            try:
                output = own.forward(batch)
            except HandedOn as handed:
                output = handed.hidden
        assert output.shape[1:] == (stages.handed[0].size if stage == 0 else ())
        ran.append((own, hidden, output))
        hidden = output.detach().requires_grad_() if stage == 0 else None
        if stage == 0:
            handed_in = hidden
    assert ran[1][2].item() == loss.item()
    ran[1][2].backward()
    gradient = handed_in.grad
    torch.autograd.backward(ran[0][2], gradient)
    for own, _, _ in ran:
        for name, each in own.model.named_parameters():
            if each.grad is not None:
                found[name] = found[name] + each.grad if name in found else each.grad
    assert found.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.items())


def test_the_whole_model_comes_back_with_its_ties():
    run = new_run("gpt", size="pico", recipe="classic")
    before = {name: each.detach().clone() for name, each in run.model.named_parameters()}
    stages = cut(run.model, 2, lambda: run.trial(run.model).logits, 2)
    assert stages.owners("transformer.wte.weight") == [0, 1]
    stages.keep(run.model, [1])
    assert sum(each.numel() for each in run.model.parameters()) < sum(each.numel() for each in before.values())
    whole = stages.whole(before, dict(run.model.named_buffers()))
    assert whole.lm_head.weight is whole.transformer.wte.weight
    assert all(torch.equal(each, before[name]) for name, each in whole.named_parameters())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(4, 4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, x, *more):
        return x + self.mlp(self.attn(x))


class Model(nn.Module):
    def __init__(self, twice: bool = False, skipping: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.first, self.twice, self.skipping = nn.Linear(4, 4), twice, skipping

    def forward(self, x):
        start = x = self.first(x)
        for block in (*self.blocks, *self.blocks) if self.twice else self.blocks:
            x = block(x)
        return x + start if self.skipping else x


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"twice": True}, "does not run its blocks once each in their order"),
        ({"skipping": True}, "reads more of an earlier one than its hidden states"),
    ],
)
def test_what_a_pipeline_cannot_hand_on_is_refused(settings, words):
    model = Model(**settings)
    with pytest.raises(NotDivisible, match=words):
        cut(model, 2, lambda: model(torch.ones(2, 3, 4)), 2)


def test_more_stages_than_blocks_are_refused():
    model = Model()
    with pytest.raises(NotDivisible, match="3 blocks do not make 4 stages"):
        cut(model, 4, lambda: model(torch.ones(2, 3, 4)), 2)
