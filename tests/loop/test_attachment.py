"""A technique that does nothing is refused after its first step, on every baseline; what attaches goes on unwatched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baselines.gpt import Gpt
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Diverged, Run
from suite.loop.sites import Act, NotAttached, Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.measure.at_scale import full_size as paper_scale
from suite.measure.at_scale.full_size import Scale
from suite.model.anatomy import AroundLinear, anatomy
from suite.record.job import Job, Setting
from tests.runs import Planted, new_run

BASELINES = ("bert", "gpt", "vit", "mae")
SHAPES = ("gpt", "vit")
STEPS = 4


def made(technique: Technique | str, baseline: str = "gpt", **settings: Any) -> Run:
    stack = build(technique) if isinstance(technique, str) else Stack({"planted": technique})
    return new_run(baseline, stack, **{"size": "pico", "recipe": "classic", "steps": STEPS} | settings)


# what does nothing ---------------------------------------------------------------------------------------------------


@dataclass
class Nothing(Technique):
    """Overrides nothing."""


@dataclass
class Unchanged(Technique):
    """Hands on what it gets."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return model

    def loss(self, loss: Tensor, outputs: Any, batch: Any, run: Run) -> Tensor:
        return loss


@dataclass
class Uncalled(Technique):
    """Has an act, and never calls it."""

    masked: Act = field(init=False, default_factory=Act)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"masked": self.masked}


@dataclass
class Beside(Technique):
    """Puts modules into the model, of which ``running`` run."""

    running: int = 0

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        self.added = []
        for number, block in enumerate(parts.blocks):
            path, linear = block.mlp_linears[0]
            self.added.append(AroundLinear(linear))
            if number < self.running:
                parts.replace(path, self.added[-1])
            else:
                block.module.add_module("beside", self.added[-1])
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {f"block {number}": each for number, each in enumerate(self.added)}


@dataclass
class Unused(Technique):
    """A new parameter that nothing reads, in an optimizer of its own."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        anatomy(model).blocks[0].module.extra = nn.Parameter(torch.zeros(3))
        return model

    def optimizer(self, parameters: Any, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.learning_rate)


@pytest.mark.parametrize("technique", [Nothing(), Unchanged()])
def test_who_names_no_site_is_refused(technique: Technique) -> None:
    with pytest.raises(NotAttached, match=r"^planted names no site, .* return the modules, parameters or acts"):
        made(technique)


@pytest.mark.parametrize("baseline", SHAPES)
@pytest.mark.parametrize(
    ("technique", "sentence"),
    [
        (Uncalled(), r"^planted did nothing at 1 of its 1 sites in the first step: masked \(never called\)\. Leave"),
        (Beside(), r"^planted did nothing at 2 of its 2 sites .*: block 0 \(never ran\), block 1 \(never ran\)\."),
        (Beside(running=1), r"^planted did nothing at 1 of its 2 sites .*: block 1 \(never ran\)\."),
        (Unused(), r"^planted did nothing at 1 of its \d+ sites .*: \S+\.0\.extra \(no gradient\)\."),
    ],
    ids=["uncalled", "beside", "partly", "unused"],
)
def test_what_does_nothing_is_refused_after_its_first_step(technique: Technique, sentence: str, baseline: str) -> None:
    run = made(technique, baseline)
    with pytest.raises(NotAttached, match=sentence):
        run.train(1)
    assert run.step == 1


def test_in_a_stack_the_one_that_does_nothing_is_named() -> None:
    run = new_run("gpt", Stack({**build("lion").techniques, "idle": Uncalled()}), size="pico", steps=STEPS)
    with pytest.raises(NotAttached, match=r"^idle did nothing at 1 of its 1 sites"):
        run.train(1)


def test_at_zero_strength_a_technique_is_its_reference_and_need_not_act() -> None:
    @dataclass
    class Off(Uncalled):
        strength: float = 0.0
        zero_strength = {"strength": 0.0}

    assert made(Off()).train(2) == made("baseline").train(2)
    with pytest.raises(NotAttached):
        made(Off(strength=1.0)).train(1)


# what attaches -------------------------------------------------------------------------------------------------------


def hooks(run: Run) -> list[Any]:
    """Everything that watches a run."""
    registered = [
        *(module._forward_hooks for module in run.model.modules()),
        *(parameter._post_accumulate_grad_hooks or {} for parameter in run.model.parameters()),
        run.optimizer._optimizer_step_pre_hooks,
    ]
    return [hook for each in registered for hook in each.values()]


@pytest.mark.parametrize("technique", [Beside(running=2), "lion", "baseline"])
def test_after_the_first_step_nothing_watches(technique: Technique | str) -> None:
    run, seen = made(technique), []
    run.model.register_forward_hook(lambda *_: seen.append(len(hooks(run))))
    run.train(1)
    assert seen[0] > 1
    run.train(1)
    assert seen[1:] == [1], "the test's own"


def test_hooks_are_gone_after_a_failure_too() -> None:
    @dataclass
    class Fails(Beside):
        def loss(self, loss: Tensor, outputs: Any, batch: Any, run: Run) -> Tensor:
            raise ZeroDivisionError

    run = made(Fails(running=2))
    with pytest.raises(ZeroDivisionError):
        run.train(1)
    assert not hooks(run)


@pytest.mark.parametrize("stack", ["baseline", "lion", "sam"])
def test_the_first_step_counts_what_it_counts_without_the_proof(stack: str) -> None:
    watched, unwatched = made(stack), made(stack)
    unwatched.attachment.proven = True
    assert watched.count_step() == unwatched.count_step()


def test_a_first_step_that_leaves_the_update_out_is_enough() -> None:
    @dataclass
    class Skips(Technique):
        def after_backward(self, run: Run) -> bool:
            return True

        def sites(self, run: Run) -> Mapping[str, Site]:
            return run.trained_parameters()

    made(Skips()).train(1)


def test_a_gradient_that_is_dropped_before_the_update_is_none() -> None:
    @dataclass
    class Drops(Planted):
        def after_backward(self, run: Run) -> None:
            run.model.zero_grad(set_to_none=True)

    run = new_run("gpt", Stack({"drops": Drops(), **build("lion").techniques}), size="pico", steps=STEPS)
    with pytest.raises(NotAttached, match=r"^lion did nothing at \d+ of its \d+ sites .*: transformer"):
        run.train(1)


def test_a_gradient_of_zeros_is_one() -> None:
    @dataclass
    class Zeros(Technique):
        def loss(self, loss: Tensor, outputs: Any, batch: Any, run: Run) -> Tensor:
            return 0.0 * loss

        def sites(self, run: Run) -> Mapping[str, Site]:
            return run.trained_parameters()

    made(Zeros()).train(1)


def test_a_divergence_in_the_first_step_is_told_as_such() -> None:
    @dataclass
    class NoNumber(Uncalled):
        def loss(self, loss: Tensor, outputs: Any, batch: Any, run: Run) -> Tensor:
            return loss * torch.nan

    with pytest.raises(Diverged, match="at step 1"):
        made(NoNumber()).train(1)


# the model's own parameters ------------------------------------------------------------------------------------------


@dataclass
class CutsOff(Planted):
    """Detaches the first block's attention: the famous fault of reentrant checkpoints."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        output = anatomy(model).blocks[0].attention_output
        assert output is not None
        output.module.register_forward_hook(lambda _, __, out: out.detach())
        return model


@pytest.mark.parametrize("baseline", SHAPES)
def test_what_cuts_parameters_off_is_refused(baseline: str) -> None:
    with pytest.raises(NotAttached, match=r"^planted cuts off \d+ parameters of the model, .*\.0\."):
        made(CutsOff(), baseline).train(1)


class Leaves(Gpt):
    """A model that leaves a parameter of every block unused, and one outside."""

    def model(self, *arguments: Any, **options: Any) -> nn.Module:
        model = super().model(*arguments, **options)
        model.outside = nn.Parameter(torch.zeros(2))
        for block in anatomy(model).blocks:
            block.module.inside = nn.Parameter(torch.zeros(2))
        return model


@pytest.mark.parametrize("stack", ["baseline", "lion"])
def test_what_the_model_leaves_unused_is_nobodys_fault_and_named(stack: str) -> None:
    job = Job(setting=Setting(baseline="gpt", size="pico", recipe="classic", steps=STEPS), stack=stack)
    run = run_of(job, baseline=Leaves())
    with pytest.warns(
        UserWarning, match=r"^3 parameters of GPT2LMHeadModel get no gradient: outside, .*inside, .*inside$"
    ):
        losses = run.train(2)
    plain = run_of(job, baseline=Leaves())
    plain.attachment.proven = True
    assert losses == plain.train(2), "asking the plain model leaves no trace"


def test_the_baselines_use_all_their_parameters() -> None:
    for baseline in BASELINES:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made("baseline", baseline).train(1)


# the end of the run --------------------------------------------------------------------------------------------------


@dataclass
class Late(Technique):
    """Acts after step ``at``."""

    at: int = 2
    grown: Act = field(init=False, default_factory=partial(Act, "run"))

    def after_step(self, run: Run) -> None:
        if run.step == self.at:
            self.grown()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"grown": self.grown}


def test_what_was_to_be_done_by_the_end_is_asked_for_then() -> None:
    run = made(Late(at=STEPS))
    run.train(STEPS)
    assert run.probes() == {}
    late = made(Late(at=STEPS + 1))
    late.train(STEPS)
    with pytest.raises(
        NotAttached, match=r"^planted did nothing at 1 of its 1 sites in the whole run: grown .* longer"
    ):
        late.probes()


def test_a_resumed_run_has_proven_itself_and_remembers_its_acts(tmp_path: Path) -> None:
    for at, acted in ((2, True), (9, False)):
        run = made(Late(at=at))
        run.train(3)
        run.save(tmp_path / "state")
        resumed = made(Late(at=at))
        resumed.load(tmp_path / "state")
        assert resumed.attachment.proven
        resumed.train(1)
        if acted:
            resumed.probes()
        else:
            with pytest.raises(NotAttached, match="grown"):
                resumed.probes()


# other ways to run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """torch.compile as it is, but for the machine code; holds how often a graph was made."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(1)
        forward: Callable[..., Any] = graph.forward
        return forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return graphs


def test_a_compiled_run_is_watched_and_compiled_once(traced: list[int]) -> None:
    torch._dynamo.reset()
    run = made(Beside(running=2), recipe="compiled")
    run.train(1)
    after_one = len(traced)
    run.train(2)
    assert len(traced) == after_one > 0
    assert not hooks(run)
    with pytest.raises(NotAttached, match="1 of its 2 sites"):
        made(Beside(running=1), recipe="compiled").train(1)


@dataclass
class Draws(Planted):
    """Dropout, and running statistics."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        path, linear = parts.blocks[0].mlp_linears[0]
        width = parts.width
        parts.replace(path, nn.Sequential(nn.Dropout(0.5), Statistics(width), linear))
        return model


class Statistics(nn.Module):
    """Takes off the mean of what it saw so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().float().mean((0, 1)), 0.1)
        return x - self.mean


def test_the_proof_changes_no_compiled_trajectory(traced: list[int]) -> None:
    ends = []
    for proven in (False, True):
        torch._dynamo.reset()
        run = made(Draws(), recipe="compiled")
        run.attachment.proven = proven
        ends.append(run.train(2))
    assert ends[0] == ends[1]


def test_steps_without_values_are_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Scale(Setting(baseline="gpt", size="pico", recipe="classic"))
    assert paper_scale.counted("lion", scale).counters is not None
    monkeypatch.setattr(paper_scale, "built", lambda stack: Stack({stack: Beside(running=1)}))
    with pytest.raises(NotAttached, match=r"^lion did nothing at 1 of its 2 sites"):
        paper_scale.counted("lion", scale)


def test_accumulated_gradients_are_gradients() -> None:
    @dataclass
    class Halves(Technique):
        def recipe(self, recipe: Recipe) -> Recipe:
            return replace(recipe, batch_size=2 * recipe.batch_size)

        def update(self, run: Run, batch: Any) -> None:
            run.optimizer.zero_grad(set_to_none=True)
            for half in range(2):
                loss = run.forward({name: each[half::2] for name, each in batch.items()}) / 2
                run.backward(loss)
            run.loss = loss.detach()
            run.apply_gradients()

        def sites(self, run: Run) -> Mapping[str, Site]:
            return run.trained_parameters()

    made(Halves()).train(2)
