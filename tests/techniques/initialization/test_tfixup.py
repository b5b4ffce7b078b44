"""T-Fixup matrix by matrix on encoders, decoders and fused projections."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from suite.model.anatomy import anatomy, weight_matrix
from suite.model.inputs import beginnings
from techniques.initialization.tfixup.technique import TFixup
from tests.model.further_models import further_run, logits, make
from tests.runs import new_run


def deviation(matrix: Tensor) -> float:
    """Over Xavier's."""
    return matrix.square().mean().sqrt().item() / math.sqrt(2 / sum(matrix.shape))


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


def test_a_streams_beginning_is_what_its_first_block_depends_on() -> None:
    model = make("t5")
    encoder, decoder = beginnings(model, anatomy(model).stacks, lambda: logits(model, "t5"))
    assert [tuple(each.shape) for each in encoder.parameters] == [(64, 32)]
    assert decoder.parameters == ()  # the embedding is the encoder's


def test_another_seed_draws_others_and_the_same_draws_the_same() -> None:
    weights: list[Any] = [
        new_run("gpt", "tfixup", size="pico", seed=seed).anatomy.linears[0].module.weight for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
