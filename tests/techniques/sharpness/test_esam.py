"""ESAM against a loop of its own, its limits (SAM, the reference), and what the authors' code gets wrong."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.entries.installed import baselines
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, Technique
from suite.meters.flops import FlopCounter
from techniques.sharpness.esam.technique import Esam, sharpest
from techniques.sharpness.shared import sharpness
from tests.runs import new_run


def new(stack: str, baseline: str = "vit", **options: Any) -> Run:
    return new_run(baseline, stack, **({"recipe": "classic", "seed": 2, "steps": 6} | options))


def weights(run: Run) -> list[Tensor]:
    return [p.detach() for p in run.model.parameters()]


# selecting examples ---------------------------------------------------------------------------------------------------


@given(
    rise=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=40),
    gamma=st.floats(0.01, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_the_sharpest_are_a_share_of_the_batch_whatever_the_ties(rise: list[float], gamma: float) -> None:
    kept = sharpest(torch.tensor(rise), gamma).tolist()
    assert len(kept) == max(1, round(gamma * len(rise)))
    assert kept == sorted(set(kept))
    left = [value for index, value in enumerate(rise) if index not in kept]
    assert not left or min(rise[index] for index in kept) >= max(left)


# the whole update -----------------------------------------------------------------------------------------------------


@dataclass
class Sgd(Technique):
    """Adam's first steps are signs, which magnify rounding."""

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for group in parameters for p in group["params"]], lr=recipe.learning_rate)


@pytest.mark.parametrize("norm", ["selected", "all"])
def test_update_by_update_a_loop_of_its_own(norm: str) -> None:
    """Written from the formula: whole gradients, explicit masks, one example at a time."""
    esam: Any = Esam(rho=0.1, norm=norm)  # type: ignore[arg-type]
    run = new_run("vit", Stack({"esam": esam, "sgd": Sgd()}), recipe="classic", seed=2, steps=6)
    model = baselines()["vit"].model("nano", run.data)
    model.load_state_dict(run.model.state_dict())
    named = dict(model.named_parameters())
    trained = [p for p in named.values() if p.ndim >= 2] + [p for p in named.values() if p.ndim < 2]
    masks = torch.Generator()
    masks.set_state(run.generator.get_state())

    def losses(batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["pixel_values"]), batch["labels"], reduction="none")

    for step in range(3):
        batch, indices = run.next_batch()
        run.train_step(batch, indices)
        m = (torch.rand(len(trained), generator=masks) < 0.6).tolist()
        before = losses(batch)
        g = torch.autograd.grad(before.mean(), trained)
        part = [each for each, kept in zip(g, m) if kept or norm == "all"]
        length = torch.cat([each.flatten() for each in part]).norm()
        old = [p.detach().clone() for p in trained]
        with torch.no_grad():
            for p, each, kept in zip(trained, g, m):
                p += (0.1 / 0.6) * kept * each / length
        rise = (losses(batch) - before).detach()
        kept_examples = [i for i in range(len(rise)) if (rise > rise[i]).sum() < len(rise) // 2]
        single = torch.stack([losses({k: v[i : i + 1] for k, v in batch.items()})[0] for i in kept_examples])
        gradients = torch.autograd.grad(single.mean(), trained)
        total = torch.cat([each.flatten() for each in gradients]).norm()
        rate = run.recipe.learning_rate_at(step) * min(1.0, run.recipe.gradient_clip / (total.item() + 1e-6))
        with torch.no_grad():
            for p, value, each in zip(trained, old, gradients):
                p.copy_(value - rate * each)
        for name, ours in run.model.named_parameters():
            torch.testing.assert_close(ours.detach(), named[name].detach(), rtol=1e-4, atol=1e-6)


def test_beta_and_gamma_of_one_are_sam_to_the_bit() -> None:
    ours = new("esam:beta=1.0,gamma=1.0", "bert")
    losses = ours.train(3)  # before the other is made: dropout draws from the process's own generator
    theirs = new("sam", "bert")
    assert losses == theirs.train(3)
    assert all(torch.equal(a, b) for a, b in zip(weights(ours), weights(theirs)))


def flops(run: Run) -> int:
    batch, indices = run.next_batch()
    with FlopCounter() as counter:
        run.train_step(batch, indices)
    assert run.loss.isfinite()
    return counter.total


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [("beta=1.0", 5.5 / 3), ("beta=1.0,gamma=1.0", 2), ("beta=1e-9", 3.5 / 3)],
)
def test_flops_by_the_passes(settings: str, ratio: float) -> None:
    """The forward pass that selects is one that SAM does not have; without weights to perturb there is no first
    gradient."""
    assert flops(new(f"esam:{settings}", "bert")) == pytest.approx(ratio * flops(new("baseline", "bert")), rel=1e-9)


@pytest.mark.slow
def test_compiled_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced forward and backward, a drawn part of the weight gradients, half a batch: to the bit, without a backend
    that rounds otherwise."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert new("esam", recipe="compiled").train(3) == new("esam", recipe="modern").train(3)


def test_probes_leave_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharpness, "LANCZOS_STEPS", 2)
    run, untouched = new("esam:probe_sharpness=true"), new("esam")
    run.train(2)
    untouched.train(2)
    assert set(run.technique.probes(run)) == {"esam.lambda_max", "esam.ascent_rise"}
    assert run.train(2) == untouched.train(2)
