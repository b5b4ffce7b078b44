"""Selective checkpointing: what the policy keeps, equal weights to the bit, and the trade of FLOPs against bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.sites import Act
from suite.loop.technique import Unavailable
from suite.reading.recording import Recording
from techniques.rematerialization.torch_sac.technique import PRODUCTS, TorchSAC, keeping_products, selectively
from tests.model.further_models import further_run
from tests.runs import new_recording, new_run


def test_the_policy_keeps_every_nth_product_and_nothing_else() -> None:
    aten = torch.ops.aten
    for every, expected in ((1, "kkk"), (2, "k-k"), (3, "k--")):
        policy = keeping_products(every)
        asked = [
            policy(None, op).name for op in (aten.mm.default, aten.gelu.default, aten.bmm.default, aten.addmm.default)
        ]
        assert asked[1] == "PREFER_RECOMPUTE"
        assert "".join("k" if asked[i] == "MUST_SAVE" else "-" for i in (0, 2, 3)) == expected


class Ran(TorchDispatchMode):
    """Names of the operators, as they run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("every", "again"), [(1, 0), (2, 1)])
def test_a_function_of_two_products_runs_again_without_those_that_are_kept(every: int, again: int) -> None:
    first, second = nn.Linear(4, 8), nn.Linear(8, 4)
    hidden = torch.randn(2, 4, requires_grad=True)

    def function(hidden: Tensor) -> Tensor:
        return functional.gelu(second(functional.gelu(first(hidden))))

    plain = torch.autograd.grad(function(hidden).sum(), [hidden, *first.parameters(), *second.parameters()])
    act, ran = Act(), Ran()
    output = selectively(act, every, function, hidden)
    with ran:
        mine = torch.autograd.grad(output.sum(), [hidden, *first.parameters(), *second.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))
    assert act.count == 1
    assert ran.names.count("aten::addmm") == again
    assert ran.names.count("aten::gelu") in (1, 2)  # the last output is its reader's


def test_half_of_the_products_are_kept_beside_what_full_checkpointing_keeps() -> None:
    recording: Recording = new_recording("gpt", "torch_sac:every=2", size="pico", recipe="modern", steps=2)
    recording.train(2)
    probes = recording.probes()
    assert probes["torch_sac.kept_beside_products"] < 0
    assert probes["torch_sac.kept_full"] > 1
    assert probes["torch_sac.changed"] == probes["torch_sac.changed_with_dropout"] == 0


@pytest.mark.parametrize("name", ["t5", "albert", "swin"])
def test_other_families_train_as_without_it(name: str) -> None:
    assert further_run(name, TorchSAC()).train(2) == further_run(name, "baseline").train(2)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Unavailable, match="torch_autoac"):
        new_run("gpt", "torch_sac", size="pico", recipe="compiled", steps=2)
    assert all(isinstance(each, torch._ops.OpOverload) for each in PRODUCTS)


def test_blocks_that_share_a_weight_are_cast_anew_under_autocast() -> None:
    """As each is when it runs again, by itself; so a run of shared blocks trains."""
    shared = nn.Linear(4, 4)
    hidden = torch.randn(2, 4, requires_grad=True)

    def gradients(wrapped: bool, cache: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            output: Tensor = hidden
            for _ in range(3):
                output = selectively(Act(), 2, shared, output) if wrapped else shared(output)
        (gradient,) = torch.autograd.grad(output.float().square().sum(), [shared.weight])
        return gradient

    assert torch.equal(gradients(True, True), gradients(False, False))
    run = new_run("gpt", "torch_sac+albert_sharing", size="pico", recipe="modern", steps=2)
    assert run.train(2) == pytest.approx(
        new_run("gpt", "albert_sharing", size="pico", recipe="modern", steps=2).train(2), rel=2**-7
    )
