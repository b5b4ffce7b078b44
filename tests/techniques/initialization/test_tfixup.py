"""T-Fixup against the paper's list, matrix by matrix, on encoders, decoders and both; and what is refused."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.stack import Stack
from suite.model.anatomy import anatomy, weight_matrix
from suite.model.inputs import beginnings
from suite.record.job import Setting
from techniques.initialization.shared.depth import WithoutNorms, deep_run, gradient_step, slope
from techniques.initialization.tfixup.technique import TFixup, branch_factor, embedding_factor
from tests.model.further_models import further_run, logits, make
from tests.runs import new_run


def deviation(matrix: Tensor) -> float:
    """Over Xavier's."""
    return matrix.square().mean().sqrt().item() / math.sqrt(2 / sum(matrix.shape))


@given(st.integers(1, 10**4))
def test_the_factors_are_those_of_the_theorem(depth: int) -> None:
    """N v^2 w^2 x^2 stays, and so do its parts: with each at N^(-1/4) their product's square is 1 / N^(3/2)."""
    assert branch_factor(depth, crossing=False) ** 4 * depth == pytest.approx(0.67**4)
    assert branch_factor(depth, crossing=True) ** 4 * depth == pytest.approx(1 / 9)
    assert embedding_factor(depth) == branch_factor(depth, crossing=True)


def test_every_matrix_of_an_encoder_and_a_decoder() -> None:
    """T5's encoder and decoder of four blocks, the one without and the other with a cross-attention."""
    run = further_run("t5", TFixup())
    encoder, decoder = run.anatomy.stacks
    for stack, factor in ((encoder, 0.67 * 4**-0.25), (decoder, 36**-0.25)):
        for block in stack.blocks:
            for path, linear in block.linears:
                expected = 1.0 if path.endswith((".q", ".k")) else factor
                assert deviation(weight_matrix(linear).detach()) == pytest.approx(expected, rel=0.1), path


@pytest.mark.parametrize("name", ["bloom", "falcon", "phi3"])
def test_fused_projections_are_drawn_one_by_one(name: str) -> None:
    """Queries, keys and values head by head, group by group, and in unequal numbers."""
    run = further_run(name, TFixup())
    for block in run.anatomy.blocks:
        (fused,) = {part.module for part in block.projections.values()}
        squares = weight_matrix(fused).detach().square().mean(1).sqrt()
        assert squares.max() / squares.min() > 1.5  # rows of values are shorter
    run.train(2)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_what_the_streams_begin_with_is_scaled(baseline: str) -> None:
    plain, run = (new_run(baseline, stack, size="pico", recipe="classic") for stack in (Own(), "tfixup"))
    before, after = (
        beginnings(each.model, each.anatomy.stacks, lambda each=each: each.trial(each.model)) for each in (plain, run)
    )
    depth = run.anatomy.stacks[0].depth
    torch.testing.assert_close(after[0].hidden, before[0].hidden * (9 * depth) ** -0.25, rtol=1e-4, atol=1e-5)
    assert [len(each.parameters) for each in before] == [len(each.parameters) for each in after]


class Own(Stack):
    """The baseline without its norms."""

    def __init__(self) -> None:
        super().__init__({"without": WithoutNorms()})


def test_a_streams_beginning_is_what_its_first_block_depends_on() -> None:
    model = make("t5")
    encoder, decoder = beginnings(model, anatomy(model).stacks, lambda: logits(model, "t5"))
    assert [tuple(each.shape) for each in encoder.parameters] == [(64, 32)]
    assert decoder.parameters == ()  # the embedding is the encoder's


def test_a_step_along_the_gradient_does_not_grow_with_the_depth_and_does_without() -> None:
    setting = Setting(baseline="gpt", size="pico", recipe="classic", steps=8)
    depths = (2, 4, 8, 16)
    ours, theirs = (
        slope(depths, [gradient_step(deep_run(setting, stack(), depth)) for depth in depths])
        for stack in (lambda: build("tfixup"), Own)
    )
    assert ours < 0.1
    assert theirs > ours + 0.1


def test_the_warm_up_goes_unless_it_is_asked_for() -> None:
    recipe = Recipe(steps=100, batch_size=8, learning_rate=1e-3)
    assert TFixup().recipe(recipe).learning_rate_at(0) == pytest.approx(1e-3, rel=1e-3)
    assert TFixup(warmup=True).recipe(recipe) == recipe


def test_another_seed_draws_others_and_the_same_draws_the_same() -> None:
    weights: list[Any] = [
        new_run("gpt", "tfixup", size="pico", seed=seed).anatomy.linears[0].module.weight for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "words"), [("albert", "is no sum of parameters"), ("mixtral", "finds no linear layers")]
)
def test_what_it_cannot_scale_is_refused(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        further_run(name, TFixup())
