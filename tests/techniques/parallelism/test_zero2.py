"""ZeRO stage 2 on two real ranks: data parallelism's updates, and gradients that are gone when the pass ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from techniques.parallelism.shared.in_backward import InBackward
from techniques.parallelism.zero2.technique import Zero2


def test_updates_are_data_parallelisms_to_the_bit(two_ranks):
    for rank in two_ranks:
        theirs, mine = rank["ddp"], rank["zero2"]
        assert torch.equal(theirs["losses"], mine["losses"])
        assert all(torch.equal(each, mine["parameters"][name]) for name, each in theirs["parameters"].items())


def test_small_buckets_make_the_same_updates_but_for_the_rounding_of_a_norm(two_ranks):
    for rank in two_ranks:
        whole, small = (rank["counted"][name] for name in ("zero2", "zero2:bucket_mb=0.02"))
        torch.testing.assert_close(whole["losses"], small["losses"], rtol=1e-4, atol=0)
        assert (whole["values"] - small["values"]).norm() < 1e-4 * whole["values"].norm()


def test_mixed_precision_stays_near_and_resumes_to_the_bit(two_ranks):
    for rank in two_ranks:
        whole, again = rank["resumed_masters"]
        assert whole == again
        exact, half = rank["counted"]["zero2"], rank["counted"]["zero2:mixed_precision=true"]
        assert half["losses"] == pytest.approx(exact["losses"], rel=0.02) and half["losses"] != exact["losses"]
        one, two = rank["counted"]["zero1:mixed_precision=true"], half
        assert torch.equal(one["values"], two["values"])


def test_collectives_are_their_definitions_for_every_type(two_ranks):
    for rank in two_ranks:
        assert all(rank["collectives"].values()), rank["collectives"]


def test_buckets_begin_in_their_order_as_soon_as_all_before_them_are_ready():
    first, second, third, unused = (nn.Parameter(torch.ones(2)) for _ in range(4))
    said: list[str] = []

    def begin(bucket):
        said.append(f"begin {bucket[0]}")
        return lambda: said.append(f"end {bucket[0]}")

    buckets = [("c", [third]), ("b", [second, unused]), ("a", [first])]
    reduction = InBackward(buckets, lambda bucket: bucket[1], begin)
    for each in (first, second, third):
        each.register_post_accumulate_grad_hook(lambda each: said.append("gradient"))
    for _ in range(2):
        said.clear()
        x = first * 2
        x = x * second
        (x * third).sum().backward()
        assert said[0] == "begin c", "its gradient is the first"
        assert said[-5:] == ["begin b", "end c", "begin a", "end b", "end a"], "what has no gradient waits for the end"
    reduction.remove()
    said.clear()
    (first * third).sum().backward()
    assert said == ["gradient"] * 2


def test_an_optimizer_that_needs_whole_layers_gets_shards_that_say_so():
    model = nn.Linear(4, 4)
    run = SimpleNamespace(rank=0, world_size=2, model=model, group=None)
    technique = Zero2()
    (group,) = technique.parameters([{"params": list(model.parameters()), "weight_decay": 0.1}], run)
    assert group["sharded"] and sum(each.numel() for each in group["params"]) == 10
    technique.parameters([{"params": list(model.parameters()), "weight_decay": 0.1}], run)
    hooks = [len(each._post_accumulate_grad_hooks) for each in model.parameters()]
    assert hooks == [1, 1], "of the second time alone"
    with pytest.raises(ValueError, match="2 ranks or more"):
        Zero2(ranks=1)
