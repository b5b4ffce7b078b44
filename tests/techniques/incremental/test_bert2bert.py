"""bert2BERT: the paper's formulas by loops, functions and gradients before and after growth, and the run around it."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.model.width import AXES, Role
from techniques.incremental.bert2bert.technique import Bert2Bert
from techniques.incremental.shared.growth import copied_units, grown, narrowed, one_block_up, with_new_units
from tests.model.further_models import further_run, make
from tests.runs import new_run

WIDTHS = dict.fromkeys(AXES, 2)


def running(technique: Bert2Bert | None, baseline: str = "gpt", steps: int = 8, size: str = "pico") -> Run:
    stack = Stack({} if technique is None else {"bert2bert": technique})
    return new_run(baseline, stack, size=size, recipe="classic", steps=steps)


# the formulas ---------------------------------------------------------------------------------------------------------

MAPPING = st.lists(st.integers(0, 2), max_size=5).map(lambda further: [0, 1, 2, *further])  # of 3 units, none left out


@given(MAPPING, MAPPING)
def test_fpi_is_the_papers_formula(rows: list[int], columns: list[int]):
    """For any units, drawn as often as one likes; and what a matrix so grown makes of copies are the copies."""
    weight, x = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    roles = Role("units", len(rows)), Role("residual", len(columns), read=True)
    wide = copied_units(weight, roles, {"units": rows, "residual": columns})
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            assert wide[i, j] == weight[row, column] / columns.count(column)
    torch.testing.assert_close(wide @ x[columns], (weight @ x)[rows])


@pytest.mark.parametrize("lists", [1, 3])
def test_aki_takes_new_heads_from_the_layer_above(lists: int):
    """Heads of two numbers each, two of them that become four; of queries, keys and values in one matrix, too."""
    own, upper = torch.randn(2, lists * 4, 3, dtype=torch.float64)
    roles = Role("heads", 4, lists, grain=2), Role("residual", 6, read=True)
    sources = {"heads": [0, 1, 0, 1], "residual": [0, 1, 2, 0, 1, 2]}
    wide = with_new_units(*(copied_units(each, roles, sources) for each in (own, upper)), roles, sources)
    for part in range(lists):
        for head in range(4):
            for number in range(2):
                row = (own if head < 2 else upper)[part * 4 + head % 2 * 2 + number]
                assert torch.equal(wide[part * 8 + head * 2 + number], torch.cat([row, row]) / 2)


# the function ---------------------------------------------------------------------------------------------------------


def small_and_grown(model: nn.Module, forward: Any, upper: bool = False) -> tuple[nn.Module, nn.Module]:
    """A narrowed copy of ``model`` with random weights, and what it becomes."""
    small = narrowed(model, WIDTHS, forward)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    before = copy.deepcopy(model)
    values = {name: each.detach() for name, each in model.named_parameters()}
    small.widen(grown(values, small.layout, small.sources, one_block_up(model) if upper else {}))
    return before, model


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit"])
def test_fpi_preserves_the_function_and_shares_out_the_gradients(baseline: str):
    """The oracle of the grown optimizer state: the large model's gradients are the small one's, grown as moments of
    degree 1 are, and their squares as those of degree 2."""
    run = running(None, baseline)
    batch, _ = run.next_batch()
    model = run.plain_model()
    small, large = small_and_grown(model, run.trial)
    losses = []
    for each in (small.train(), large.train()):
        loss = run.baseline.losses(run.baseline.forward(each, batch), batch).mean()
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
    parts = narrowed(run.plain_model(), WIDTHS, run.trial)
    own = {name: each.grad for name, each in small.named_parameters() if each.grad is not None}
    theirs = {name: each.grad for name, each in large.named_parameters() if each.grad is not None}
    largest = max(each.abs().max() for each in theirs.values()).item()
    for degree in (1, 2):
        wide = grown({name: each**degree for name, each in own.items()}, parts.layout, parts.sources, {}, degree)
        assert wide.keys() == theirs.keys()
        for name, gradient in theirs.items():
            torch.testing.assert_close(wide[name], gradient**degree, rtol=1e-3, atol=1e-5 * largest**degree, msg=name)


def test_units_that_are_copied_unequally_change_the_function_a_little():
    """What the paper draws at random: LayerNorm's mean and variance are then of other weights of the units."""
    run = running(None, "gpt", size="nano")
    model = run.plain_model()
    small = narrowed(model, WIDTHS, run.trial)
    before = run.trial(copy.deepcopy(model)).logits
    sources = small.sources
    half = max(sources["residual"]) + 1
    drawn = torch.randint(half, (half,), generator=torch.Generator().manual_seed(0)).tolist()
    unequal = {**sources, "residual": [*range(half), *drawn]}
    values = {name: each.detach() for name, each in model.named_parameters()}
    small.widen(grown(values, small.layout, unequal, {}))
    change = ((run.trial(model).logits - before).norm() / before.norm()).item()
    assert 1e-3 < change < 0.5


@pytest.mark.parametrize("name", ["gpt_neox", "bloom", "gptj", "albert", "deit3", "dropping_vit", "gpt2"])
def test_a_users_model_grows_to_its_own_architecture(name: str):
    """Queries, keys and values head by head, in rotary positions, in one block for all depths, with scales."""
    run, whole = further_run(name, Bert2Bert()), make(name)
    assert sum(p.numel() for p in run.model.parameters()) < 0.7 * sum(p.numel() for p in whole.parameters())
    run.train(6)
    assert {n: p.shape for n, p in run.model.named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    assert [str(module) for module in run.model.modules()] == [str(module) for module in whole.modules()]


REFUSED = {
    "falcon": "fewer keys than queries",
    "mixtral": "ends in no linear layer",
    "t5": "not all alike",
    "beit": "does not run at another width",
    "eva02": "85 MLP units, which 2 does not divide: use one of 1, 5, 17, 85",
    "xcit": "several stacks",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_narrower_form_is_refused_in_words(name: str):
    with pytest.raises(ValueError, match=REFUSED[name]):
        further_run(name, Bert2Bert())


# the run --------------------------------------------------------------------------------------------------------------


def test_optimizer_state_grows_with_the_model():
    run = running(Bert2Bert(carry_optimizer=True))
    run.train(2)
    table = run.anatomy.embeddings[0].module.weight
    state = run.optimizer.state[table]
    assert state["step"] == 2
    assert state["exp_avg"].shape == table.shape
    halves = state["exp_avg"].chunk(2, dim=1)
    assert torch.equal(*halves)
    assert halves[0].any()


def test_the_jump_is_that_of_the_first_loss_after_the_growth():
    run = running(Bert2Bert())
    losses = run.train(5)
    assert run.technique.probes(run)["bert2bert.loss_jump"] == losses[2] - losses[1]


def test_bad_settings_say_what_fits():
    with pytest.raises(ValueError, match="has 2 heads, which 4 does not divide: use one of 1, 2"):
        running(Bert2Bert(width=4))
    with pytest.raises(ValueError, match="has 2 blocks, which depth=4 does not divide: use one of 1, 2"):
        running(Bert2Bert(depth=4))
    with pytest.raises(ValueError, match="put it last"):
        new_run("gpt", "bert2bert+layerscale", size="pico", recipe="classic", steps=8)


def test_what_comes_before_grows_along():
    run = new_run("gpt", "layerscale+bert2bert", size="pico", recipe="classic", steps=8)
    scale: Tensor = run.anatomy.blocks[0].branches[0].module.scale
    assert scale.shape == (16,)
    run.train(3)
    assert run.anatomy.blocks[0].branches[0].module.scale.shape == (32,)
