"""Data parallelism on two real ranks: against itself written with hooks, and models with unused parameters."""

import math
import re

import torch

from techniques.parallelism.dp_ddp.technique import uses_all_parameters
from tests.runs import new_run


def test_first_gradients_equal_the_hook_version_to_the_bit(two_ranks):
    for rank in two_ranks:
        for mine, hooked in zip(rank["ddp"]["gradients"], rank["hooked"], strict=True):
            assert torch.equal(mine, hooked)


def test_each_of_several_ranks_ascends_on_its_own_gradient(two_ranks):
    """The first gradient is not reduced, so a step sends what data parallelism's does (m-sharpness, section 4.1)."""
    names = ("dp_ddp", "sam+dp_ddp", "esam+dp_ddp")
    sent = {two_ranks[0]["counted"][name]["communication_bytes"] for name in names}
    assert len(sent) == 1 and sent != {0}


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
