"""Stacks: hyper-parameters by type, chains in order, one technique a slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch

from suite.entries.spelling import configured
from suite.loop.recipe import Recipe
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import StackError


@dataclass
class Typed(Technique):
    rank: int = 4
    rate: float = 0.1
    nesterov: bool = False
    mode: Literal["a", "b"] = "a"
    places: Literal[1, 2] = 1
    target: str | None = None
    betas: tuple[float, ...] = (0.9, 0.99)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be 1 or more, not {self.rank}")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("rank", "8", 8),
        ("rate", "1e-3", 1e-3),
        ("nesterov", "true", True),
        ("nesterov", "0", False),
        ("mode", "b", "b"),
        ("places", "2", 2),
        ("target", "mlp", "mlp"),
        ("target", "none", None),
        ("betas", "0.8/0.95", (0.8, 0.95)),
    ],
)
def test_hyper_parameters_are_parsed_by_their_types(key: str, text: str, value: object) -> None:
    parsed = getattr(configured(Typed, "typed", {key: text}), key)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("rank", "4.5", "typed:rank=4.5: expected a whole number"),
        ("rank", "0", "typed: rank must be 1 or more, not 0"),
        ("rate", "fast", "expected a number"),
        ("nesterov", "yes", "expected true or false"),
        ("mode", "c", "choose one of a, b"),
        ("betas", "0.9/x", "expected a number"),
        ("ranks", "4", "no hyper-parameter 'ranks'; it has: rank=4, rate=0.1, .*target=None"),
    ],
)
def test_impossible_hyper_parameters_are_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(StackError, match=message):
        configured(Typed, "typed", {key: text})


@dataclass
class Noted(Technique):
    """Writes down what is called on it, in the order of calls."""

    name: str
    calls: list[str]

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, steps=2 * recipe.steps + len(self.name))

    @contextmanager
    def around_step(self, run: Any) -> Iterator[None]:
        self.calls.append(f"{self.name} in")
        yield
        self.calls.append(f"{self.name} out")

    def loss(self, loss: torch.Tensor, outputs: Any, batch: Any, run: Any) -> torch.Tensor:
        return loss * 2 + len(self.name)

    def probes(self, run: Any) -> dict[str, float]:
        return {"n": len(self.name)}

    def state(self) -> dict[str, Any]:
        return {"mine": self.name}

    def restore(self, state: dict[str, Any], run: Any) -> None:
        self.calls.append(state["mine"])


def test_chained_methods_pass_through_in_order() -> None:
    calls: list[str] = []
    stack = Stack({"a": Noted("a", calls), "bb": Noted("bb", calls)})
    assert stack.recipe(Recipe(10, 8, 0.1)).steps == 2 * (2 * 10 + 1) + 2
    assert stack.loss(torch.tensor(10.0), None, {}, None) == 44  # type: ignore[arg-type]
    with stack.around_step(None):  # type: ignore[arg-type]
        calls.append("step")
    assert calls == ["a in", "bb in", "step", "bb out", "a out"]
    assert stack.probes(None) == {"a.n": 1.0, "bb.n": 2.0}  # type: ignore[arg-type]
    stack.restore(stack.state(), None)  # type: ignore[arg-type]
    assert calls[-2:] == ["a", "bb"]


@dataclass
class Looking(Technique):
    """Writes down when it sees a step's gradients and weights, and the model to evaluate."""

    name: str
    calls: list[str]

    def parameters(self, groups: Any, run: Any) -> Any:
        return [*groups, self.name]

    def after_backward(self, run: Any) -> None:
        self.calls.append(f"{self.name}: gradients")

    def after_step(self, run: Any) -> None:
        self.calls.append(f"{self.name}: weights")

    def evaluated(self, model: Any, run: Any) -> Any:
        return f"{model}, {self.name}"


@dataclass
class OfRanks(Looking):
    def parallelize(self, model: Any, mesh: Any) -> Any:
        return model


@dataclass
class Scaling(Technique):
    calls: list[str]

    def loss(self, loss: Any, outputs: Any, batch: Any, run: Any) -> Any:
        return 2 * loss

    def after_backward(self, run: Any) -> None:
        self.calls.append("unscaled")


def test_ranks_put_gradients_and_models_together_before_others_see_them_wherever_they_stand() -> None:
    calls: list[str] = []
    masks, averages = Looking("masks", calls), Looking("averages", calls)
    for stack in ([masks, averages, OfRanks("ranks", calls)], [OfRanks("ranks", calls), masks, averages]):
        calls.clear()
        together = Stack({each.name: each for each in stack})
        together.after_backward(None)  # type: ignore[arg-type]
        together.after_step(None)  # type: ignore[arg-type]
        assert calls == [
            f"{who}: {what}" for what in ("gradients", "weights") for who in ("ranks", "masks", "averages")
        ]
        assert together.evaluated("model", None) == "model, ranks, masks, averages"  # type: ignore[arg-type]
        assert together.parameters([], None) == ["masks", "averages", "ranks"]  # type: ignore[arg-type,comparison-overlap]


def test_a_scaled_loss_is_undone_in_the_gradients_before_ranks_exchange_them() -> None:
    calls: list[str] = []
    stack = Stack({"scales": Scaling(calls), "ranks": OfRanks("ranks", calls)})
    stack.after_backward(None)  # type: ignore[arg-type]
    assert calls == ["unscaled", "ranks: gradients"]


def test_an_inner_failure_leaves_every_context() -> None:
    calls: list[str] = []

    @dataclass
    class Closing(Technique):
        @contextmanager
        def around_step(self, run: Any) -> Iterator[None]:
            try:
                yield
            finally:
                calls.append("closed")

    with (
        pytest.raises(KeyError),
        Stack({"a": Closing(), "b": Closing()}).around_step(None),  # type: ignore[arg-type]
    ):
        raise KeyError
    assert calls == ["closed", "closed"]


@dataclass
class Sgd(Technique):
    def optimizer(self, parameters: Any, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.learning_rate)


@dataclass
class OwnUpdate(Technique):
    def update(self, run: Any, batch: Any) -> None:
        run.append(batch)


def test_a_slot_takes_one_technique_and_others_stay_with_the_default() -> None:
    weight = [{"params": [torch.nn.Parameter(torch.zeros(2))], "weight_decay": 0.0}]
    seen: list[Any] = []
    stack = Stack({"a": Sgd(), "b": OwnUpdate()})
    assert isinstance(stack.optimizer(weight, Recipe(10, 8, 0.1)), torch.optim.SGD)
    stack.update(seen, "batch")  # type: ignore[arg-type]
    assert seen == ["batch"]
    assert isinstance(Stack({}).optimizer(weight, Recipe(10, 8, 0.1)), torch.optim.AdamW)
    with pytest.raises(StackError, match="a and c cannot be stacked: each replaces the optimizer; keep one"):
        Stack({"a": Sgd(), "b": OwnUpdate(), "c": Sgd()})


def test_a_stack_of_a_stack_is_the_stack() -> None:
    """A stack overrides everything; nesting must not turn its chained calls into other ones."""
    flat, calls = Stack({"a": Noted("a", []), "bb": Noted("bb", [])}), Recipe(10, 8, 0.1)
    assert Stack({"inner": flat}).recipe(calls) == flat.recipe(calls)
