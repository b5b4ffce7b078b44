"""A fitted model whose blocks are compiled: gradients to the bit and few compilations; a whole model in a sentence."""

from collections.abc import Callable, Iterator
from functools import cache
from shutil import which
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from leantrain.fitting import fit
from tests.leantrain.fit_ranks import DEPTH, Gradients, Tokens, batch_of, different, fitted_of, loss_of

RUNS = {"each": 2 * DEPTH, "whole": 2 * DEPTH, "nested": 9}  # of blocks in a pass


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    torch._dynamo.reset()
    counters.clear()


def in_place(model: Any, backend: str) -> None:
    """``block.compile()``: the module stays."""
    for block in model.blocks:
        block.compile(backend=backend)


def around(model: Any, backend: str) -> None:
    """``torch.compile(block)`` takes the block's place."""
    for stage in model.stages:
        for index in range(len(stage)):
            stage[index] = torch.compile(stage[index], backend=backend)


WHEN = ("before", "after")
WAYS: dict[str, Callable[[Any, str], None]] = {"in place": in_place, "around": around}


def trained(model: Any) -> list[Gradients]:
    gradients = []
    for step in range(3):
        torch.manual_seed(step)
        model.zero_grad()
        loss_of(model, batch_of(step, 0)).backward()
        gradients.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return gradients


@cache
def expected(way: str, backend: str) -> list[Gradients]:
    model = Tokens()
    if way:
        WAYS[way](model, backend)
    return trained(model)


class Attentions(TorchDispatchMode):
    """How often attention ran: once in each run of a block."""

    runs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.runs += "scaled_dot_product" in str(func) and "backward" not in str(func)
        return func(*args, **(kwargs or {}))


def runs_of(model: Any) -> int:
    with Attentions() as attentions:
        loss_of(model, batch_of(0, 0)).backward()
    return attentions.runs


@pytest.mark.parametrize(
    ("way", "when", "plan"),
    [*(("in place", "before", plan) for plan in ("middle", *RUNS)), *(("around", when, "nested") for when in WHEN)],
)
def test_gradients_are_those_of_compiled_blocks(way: str, when: str, plan: str) -> None:
    plain, model = expected(way, "aot_eager"), Tokens()
    forget()
    if when == "before":
        WAYS[way](model, "aot_eager")
    fitted = fitted_of(model, batch_of(0, 0), plan)
    if when == "after":
        WAYS[way](model, "aot_eager")
    with fitted.step():
        assert not different(trained(model), plain)
        made = counters["stats"]["unique_graphs"]
        assert not different(trained(model), plain)
        assert counters["stats"]["unique_graphs"] == made <= 2
        assert runs_of(model) == RUNS.get(plan, runs_of(model)) > DEPTH
    assert not different(trained(model), plain)


@pytest.mark.skipif(which("g++") is None, reason="inductor compiles for the CPU by g++")
def test_inductor_s_blocks_run_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    plain, model = expected("in place", "inductor"), Tokens()
    in_place(model, "inductor")
    fitted = fitted_of(model, batch_of(0, 0), "nested")
    with fitted.step():
        for ours, theirs in zip(trained(model), plain, strict=True):
            torch.testing.assert_close(ours, theirs)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager")


def compiled_in_place(model: nn.Module) -> Any:
    model.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize(
    ("whole", "plan", "installed"),
    [(compiled, "each", True), (compiled, "nested", False), (compiled_in_place, "nested", True)],
)
def test_a_model_compiled_as_a_whole_is_refused_before_and_keeps_its_plan_after(
    whole: Callable[[Any], Any], plan: str, installed: bool
) -> None:
    with pytest.raises(ValueError, match=r"compiled as a whole.*compile its blocks \(block\.compile\(\)\)") as caught:
        fit(whole(Tokens()), batch_of(0, 0), loss_of, "1GB")
    assert "\n" not in str(caught.value)
    model = Tokens()
    fitted = fitted_of(model, batch_of(0, 0), plan)
    if installed:
        fitted.install()
    outer = whole(model)
    with fitted.step():
        assert not different(trained(outer), expected("", ""))
        assert runs_of(outer) == RUNS[plan]
