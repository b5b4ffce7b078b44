"""ESAM against a loop of its own, its limits (SAM, the reference), and what the authors' code gets wrong."""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.entries.installed import baselines
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, Technique
from suite.meters.flops import FlopCounter, attention_flops
from techniques.sharpness.esam import technique
from techniques.sharpness.esam.technique import Esam, drawn, sharpest
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


@pytest.mark.parametrize("rise", [torch.arange(20.0), torch.zeros(20), torch.tensor([1.0, 2.0])])
def test_a_strict_cut_off_keeps_one_fewer_and_may_keep_none(rise: Tensor) -> None:
    """``instance_sharpness > cutoff`` with the cut-off the smallest of the top half, as the authors write it."""
    half = len(rise) // 2
    strict = (rise > rise.topk(half).values[-1]).nonzero()
    assert len(strict) < half == len(sharpest(rise, 0.5))
    if not len(strict):
        assert rise[strict].mean().isnan(), "the mean loss of an empty batch"


# perturbing weights ---------------------------------------------------------------------------------------------------


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made: list[Tensor] = [
        nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in [(6, 5), (5,), (3, 2, 2)]
    ]
    for each in made:
        each.grad = torch.randn(each.shape, generator=generator, dtype=dtype)
    return made


def displacement(esam: Esam, chosen: set[int]) -> list[Tensor]:
    """e for the tensors ``chosen``, from the same weights and gradients every time."""
    trained = parameters()
    before = [each.detach().clone() for each in trained]
    if esam.norm == "selected":  # the others' gradients are never computed
        for index, each in enumerate(trained):
            each.grad = each.grad if index in chosen else None
    esam.perturb(trained, [trained[index] for index in sorted(chosen)])
    return [each.detach() - old for each, old in zip(trained, before)]


@pytest.mark.parametrize("beta", [0.6, 0.25, 1.0])
def test_the_formula_s_perturbation_is_sams_in_expectation(beta: float) -> None:
    """Over all 2^3 masks with their probabilities: rho g / ||g||, exactly."""
    gradients = [each.grad for each in parameters() if each.grad is not None]
    norm = torch.cat([each.flatten() for each in gradients]).norm()
    mean = [torch.zeros_like(each) for each in gradients]
    for mask in itertools.product([False, True], repeat=3):
        probability = beta ** sum(mask) * (1 - beta) ** (3 - sum(mask))
        e = displacement(Esam(rho=0.3, beta=beta, norm="all"), {index for index, kept in enumerate(mask) if kept})
        mean = [total + probability * each for total, each in zip(mean, e)]
    for total, gradient in zip(mean, gradients):
        torch.testing.assert_close(total, 0.3 * gradient / norm)


def test_nothing_drawn_moves_nothing() -> None:
    assert Esam().perturb(parameters(), []) == ([], [])
    run = new("esam:beta=1e-9")
    assert all(torch.isfinite(torch.tensor(run.train(2))))


@given(beta=st.floats(0.05, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_each_tensor_is_drawn_with_probability_beta(beta: float, seed: int) -> None:
    many = [torch.empty(0) for _ in range(2000)]
    share = len(drawn(many, beta, torch.Generator().manual_seed(seed))) / len(many)
    assert abs(share - beta) < 5 * (beta * (1 - beta) / len(many)) ** 0.5 + 1e-9


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


@pytest.mark.parametrize("baseline", ["vit", "bert"])
def test_beta_and_gamma_of_one_are_sam_to_the_bit(baseline: str) -> None:
    ours = new("esam:beta=1.0,gamma=1.0", baseline)
    losses = ours.train(3)  # before the other is made: dropout draws from the process's own generator
    theirs = new("sam", baseline)
    assert losses == theirs.train(3)
    assert all(torch.equal(a, b) for a, b in zip(weights(ours), weights(theirs)))


def flops(run: Run) -> int:
    batch, indices = run.next_batch()
    with FlopCounter() as counter:
        run.train_step(batch, indices)
    return counter.total


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [("beta=1.0", 5.5 / 3), ("norm=all", 5.5 / 3), ("beta=1.0,gamma=1.0", 2), ("beta=1e-9", 3.5 / 3)],
)
def test_flops_by_the_passes(settings: str, ratio: float) -> None:
    """The forward pass that selects is one that SAM does not have; without weights to perturb there is no first
    gradient."""
    assert flops(new(f"esam:{settings}", "bert")) == pytest.approx(ratio * flops(new("baseline", "bert")), rel=1e-9)


def test_flops_of_a_draw_are_those_of_its_weight_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3 + beta + 3 gamma) / 3, with beta the drawn share of the weight gradients: here the query layers' alone.

    Attention's own products have no weights: both of their gradients are always needed.
    """
    run = new("esam", "bert")
    query = [block.projections["query"].module.weight for block in run.anatomy.blocks]
    positions = run.anatomy.embeddings[1].module.weight  # costs nothing, and the gradient must come all the way to it
    monkeypatch.setattr(technique, "drawn", lambda *_: [positions, *query])
    batch, heads = run.recipe.batch_size, run.anatomy.heads
    length = run.data.train.tensors["input_ids"].shape[1]
    assert heads is not None
    shape = (batch, heads, length, run.anatomy.width // heads)
    attention = run.anatomy.depth * attention_flops(shape, shape, shape)
    weight_gradients = sum(2 * batch * length * each.numel() for each in query)  # type: ignore[operator]
    expected = 1.5 * flops(new("baseline", "bert")) + attention + weight_gradients
    assert flops(run) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_compiled_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced forward and backward, a drawn part of the weight gradients, half a batch: to the bit, without a backend
    that rounds otherwise."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert new("esam", recipe="compiled").train(3) == new("esam", recipe="modern").train(3)


def test_the_rise_of_a_loss_is_not_that_of_the_dropout_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a vanishing perturbation nothing rises, in a model that drops out."""
    rises: list[Tensor] = []

    def noted(rise: Tensor, gamma: float) -> Tensor:
        rises.append(rise)
        return sharpest(rise, gamma)

    monkeypatch.setattr(technique, "sharpest", noted)
    run = new("esam:rho=1e-12", "bert")
    for module in run.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    run.train(1)
    with torch.no_grad():
        batch, _ = run.next_batch()
        once, again = (run.baseline.losses(run.baseline.forward(run.model, batch), batch) for _ in range(2))
    assert rises[0].abs().max() < 1e-5 < (once - again).abs().max()


def test_probes_leave_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharpness, "LANCZOS_STEPS", 2)
    run, untouched = new("esam:probe_sharpness=true"), new("esam")
    run.train(2)
    untouched.train(2)
    assert set(run.technique.probes(run)) == {"esam.lambda_max", "esam.ascent_rise"}
    assert run.train(2) == untouched.train(2)


@pytest.mark.parametrize("settings", ["rho=-1", "beta=0", "beta=1.1", "gamma=0", "gamma=nan", "norm=some"])
def test_impossible_settings_are_refused(settings: str) -> None:
    with pytest.raises(ValueError, match=settings.split("=")[0]):
        build(f"esam:{settings}")
