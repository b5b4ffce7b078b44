"""Data parallelism on two real ranks: against the single process, and against itself written with hooks."""

import math
import re
from dataclasses import dataclass, replace

import torch

from suite.loop.recipe import Recipe
from suite.loop.stack import Stack
from techniques.parallelism.dp_ddp.technique import uses_all_parameters
from tests.runs import Planted, new_run

STEPS = 3


@dataclass
class Unclipped(Planted):
    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, gradient_clip=0.0)


def test_ranks_stay_equal_to_the_bit(two_ranks):
    for case in ("ddp_vit", "ddp_gpt", "ddp_clipped"):
        first, second = (rank[case]["parameters"] for rank in two_ranks)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_ranks_take_disjoint_halves_of_the_global_batch(two_ranks):
    run = new_run("vit", size="nano", recipe="classic", steps=10)
    for step in range(STEPS):
        run.position = step * run.recipe.batch_size
        _, whole = run.next_batch()
        for rank, result in enumerate(two_ranks):
            assert torch.equal(result["ddp_vit"]["indices"][step], whole[rank::2])


def test_trajectory_is_the_single_processs(two_ranks):
    """The vision transformer has no dropout, so that nothing but rounding differs."""
    run = new_run("vit", Stack({"unclipped": Unclipped()}), size="nano", recipe="classic", steps=10)
    losses = torch.tensor(run.train(STEPS))
    mean = sum(rank["ddp_vit"]["losses"] for rank in two_ranks) / 2
    torch.testing.assert_close(mean, losses, rtol=1e-4, atol=1e-4)


def test_first_gradients_equal_the_hook_version_to_the_bit(two_ranks):
    for rank in two_ranks:
        for mine, hooked in zip(rank["ddp_vit"]["gradients"], rank["hooked"], strict=True):
            assert torch.equal(mine, hooked)


def test_every_gradient_is_reduced_once(two_ranks):
    size = sum(p.numel() for p in two_ranks[0]["ddp_vit"]["parameters"].values())
    assert two_ranks[0]["ddp_bytes"]["allreduce_"] == 4 * size


def test_replicas_whose_gradients_are_not_reduced_are_refused_on_every_rank(two_ranks):
    for rank in two_ranks:
        assert re.match(r"parallel did nothing at 1 of its \d+ sites in the first step", rank["silent"])
        assert "reduces the gradients (never called)" in rank["silent"]


def test_gradients_are_compared_by_their_bits(two_ranks):
    for rank in two_ranks:
        assert rank["comparisons"] == {"same": True, "other": False, "missing": False}


def test_a_parameter_that_no_pass_uses_stops_nothing(two_ranks):
    first, second = (rank["unused"] for rank in two_ranks)
    assert all(map(math.isfinite, first["losses"]))
    assert all(map(torch.equal, first["parameters"], second["parameters"]))


def test_the_search_for_unused_parameters_is_for_models_that_have_some():
    """And it leaves random numbers and running statistics alone."""
    run = new_run("vit", size="pico", recipe="classic")
    run.model.register_buffer("statistics", torch.zeros(3))

    def count(model, inputs):
        model.statistics.add_(torch.rand(3))

    run.model.register_forward_pre_hook(count)
    before = torch.get_rng_state()
    assert uses_all_parameters(run.model, run)
    run.model.register_parameter("never_used", torch.nn.Parameter(torch.ones(2)))
    assert not uses_all_parameters(run.model, run)
    run.model.never_used.requires_grad_(False)
    assert uses_all_parameters(run.model, run)
    assert not run.model.statistics.any() and torch.equal(torch.get_rng_state(), before)
