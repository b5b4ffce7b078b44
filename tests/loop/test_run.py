"""One training run: exact in its replay, blind to what others do, and whole or absent on the disk."""

from __future__ import annotations

import math
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from suite.entries.spelling import build
from suite.kernels.wrapped import WrappedOptimizer
from suite.loop.run import Diverged, Run, load_weights
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from tests.runs import Planted, new_run

STEPS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(technique: Technique | None = None, seed: int = 0, **changes: Any) -> Run:
    settings: dict[str, Any] = {"recipe": "classic", "steps": STEPS} | changes
    stack = technique if isinstance(technique, Stack) else Stack({"planted": technique} if technique else {})
    return new_run("gpt", stack, seed=seed, **settings)


def weights(run: Run) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_seed_is_a_trajectory() -> None:
    ends = []
    for seed in (1, 1, 2):
        run = make(seed=seed)
        ends.append((run.train(3), weights(run)))
    assert ends[0][0] == ends[1][0] != ends[2][0]
    assert same(ends[0][1], ends[1][1])
    assert not same(ends[0][1], ends[2][1])


def test_evaluation_changes_nothing() -> None:
    plain = make()
    losses = plain.train(4)
    score = plain.evaluate()
    run = make()
    parts = []
    for _ in range(4):
        run.evaluate()
        parts += run.train(1)
    assert parts == losses
    assert run.evaluate() == run.evaluate() == score
    assert run.model.training


def test_a_saved_run_continues_to_the_bit(tmp_path: Path) -> None:
    run = make(build("lion"))
    losses = run.train(STEPS)
    half = make(build("lion"))
    half.train(2)
    half.save(tmp_path / "run.pt")
    resumed = make(build("lion"), seed=9)
    resumed.seed = 0  # the rest comes from the file
    resumed.load(tmp_path / "run.pt")
    assert resumed.train(STEPS - 2) == losses[2:]
    assert same(weights(resumed), weights(run))
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_loading_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"step": Payload()}, tmp_path / "run.pt")
    run = make()
    with pytest.raises(pickle.UnpicklingError):
        run.load(tmp_path / "run.pt")
    with pytest.raises(pickle.UnpicklingError):
        load_weights(run.model, tmp_path / "run.pt")
    assert not (tmp_path / "executed").exists()


def test_weights_load_where_they_fit_and_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    saved = weights(make(seed=1))
    run = make(seed=2)
    other, fresh = next(name for name, tensor in saved.items() if tensor.ndim == 1), weights(run)
    torch.save(saved | {other: torch.zeros(3)}, tmp_path / "other_head.pt")
    load_weights(run.model, tmp_path / "other_head.pt")
    assert same(weights(run), saved | {other: fresh[other]})
    torch.save({"foreign": torch.zeros(3)}, tmp_path / "foreign.pt")
    with pytest.raises(ValueError, match="holds no weights of this model"):
        load_weights(run.model, tmp_path / "foreign.pt")


@dataclass
class AtStep(Planted):
    """Multiplies the loss by ``factor`` at step ``step``."""

    step: int = 2
    factor: float = math.nan

    def loss(self, loss: Tensor, outputs: Any, batch: Any, run: Run) -> Tensor:
        return loss * self.factor if run.step == self.step else loss


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_divergence_at_its_step(factor: float) -> None:
    with pytest.raises(Diverged, match="at step 3"):
        make(AtStep(2, factor)).train(STEPS)
    run = make(AtStep(2, factor))
    run.train(1)
    with pytest.raises(Diverged, match="at step 3"):
        run.train(4)


def test_a_test_loss_that_is_no_number_is_a_divergence() -> None:
    run = make()
    run.train(1)
    for parameter in run.model.parameters():
        parameter.data.fill_(math.nan)
    with pytest.raises(Diverged, match="validation loss became nan after step 1"):
        run.evaluate()


def test_the_optimizer_gets_every_trainable_parameter_once_and_decays_matrices_only() -> None:
    run = make()
    grouped = [(p, group["weight_decay"]) for group in run.optimizer.param_groups for p in group["params"]]
    trainable = [p for p in run.model.parameters() if p.requires_grad]
    assert sorted(map(id, trainable)) == sorted(id(p) for p, _ in grouped)
    assert {decay for p, decay in grouped if p.ndim < 2} == {0.0}
    assert {decay for p, decay in grouped if p.ndim >= 2} == {run.recipe.weight_decay}


@dataclass
class Scales(Planted):
    """Half the learning rate for every group."""

    def parameters(self, groups: Any, run: Run) -> Any:
        return [group | {"learning_rate_scale": 0.5} for group in groups]


def test_the_learning_rate_follows_the_recipe_and_the_groups_scale() -> None:
    run = make(Scales())
    for step in range(STEPS):
        run.train(1)
        assert {group["lr"] for group in run.optimizer.param_groups} == {0.5 * run.recipe.learning_rate_at(step)}


def test_clipping_is_torchs() -> None:
    run = make()
    batch, _ = run.next_batch()
    run.backward(run.forward(batch))
    gradients = [p.grad.clone() for p in run.model.parameters() if p.grad is not None]
    norm = run.clip_gradients(0.1)
    clipped = [p.grad.clone() for p in run.model.parameters() if p.grad is not None]
    twins = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for twin, gradient in zip(twins, gradients, strict=True):
        twin.grad = gradient
    assert norm.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(twins, 0.1).item(), rel=1e-6)
    for twin, each in zip(twins, clipped, strict=True):
        torch.testing.assert_close(twin.grad, each)


class Centralized(WrappedOptimizer):
    """Yong et al., ECCV 2020, section 3: the gradient of each output is moved to mean zero."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.with_gradient():
            if parameter.ndim > 1:
                parameter.grad -= parameter.grad.mean(tuple(range(1, parameter.ndim)), keepdim=True)
        return super().step(closure)


class Counted(WrappedOptimizer):
    """Keeps how many steps it has made."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)

    def own_state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@dataclass
class Unclipped(Planted):
    def recipe(self, recipe: Any) -> Any:
        return replace(recipe, gradient_clip=0.0)


@dataclass
class Wraps(Technique):
    around: type[WrappedOptimizer] = Centralized

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, run: Run) -> torch.optim.Optimizer:
        return self.around(optimizer)


@dataclass
class Early(Planted):
    """The same by hand, where nothing is clipped in between."""

    def after_backward(self, run: Run) -> None:
        for parameter in run.model.parameters():
            if parameter.grad is not None and parameter.ndim > 1:
                parameter.grad -= parameter.grad.mean(tuple(range(1, parameter.ndim)), keepdim=True)


def test_a_wrapped_optimizer_is_what_its_wrapper_says_and_goes_on_after_a_pause(tmp_path: Path) -> None:
    wrapped, by_hand = (make(Stack({"unclipped": Unclipped(), "own": each})) for each in (Wraps(), Early()))
    assert wrapped.train(3) == by_hand.train(3) != make().train(3)
    assert same(weights(wrapped), weights(by_hand))
    both = make(Stack({"inner": Wraps(Centralized), "outer": Wraps(Counted)}))
    both.train(2)
    both.save(tmp_path / "state")
    again = make(Stack({"inner": Wraps(Centralized), "outer": Wraps(Counted)}))
    again.load(tmp_path / "state")
    assert isinstance(again.optimizer, Counted) and again.optimizer.steps == 2
    assert isinstance(again.optimizer.optimizer, Centralized)
    both.train(2)
    again.train(2)
    assert same(weights(both), weights(again))


@dataclass
class Skips(Planted):
    """Skips every second update."""

    def after_backward(self, run: Run) -> bool:
        return run.step % 2 == 1


def test_a_skipped_update_changes_nothing_and_counts_as_a_step() -> None:
    run = make(Skips())
    run.train(1)
    before = weights(run)
    run.train(1)
    assert same(weights(run), before)
    assert (run.step, run.position) == (2, 2 * run.recipe.batch_size)
    run.train(1)
    assert not same(weights(run), before)


def test_batches_prepared_ahead_are_the_ones_in_order() -> None:
    """The path of accelerators, whose next batch is made meanwhile: also after the batch size changed."""
    run, position = make(), 0
    for size in (8, 8, 4, 4, 8):
        run.position, run.recipe = position, type(run.recipe)(**run.recipe.as_dict() | {"batch_size": size})
        batch, indices = run._prefetched()
        expected, order = run._global_batch(position)
        assert torch.equal(indices, order)
        assert all(torch.equal(batch[name], expected[name]) for name in expected)
        position += size


def test_another_world_size_than_the_recipes_is_refused() -> None:
    @dataclass
    class TwoRanks(Planted):
        def recipe(self, recipe: Any) -> Any:
            return type(recipe)(**recipe.as_dict() | {"world_size": 2})

    with pytest.raises(ValueError, match="asks for 2 ranks, the run has 1"):
        make(TwoRanks())
    with pytest.raises(RuntimeError, match="no process group"):
        _ = make().group
