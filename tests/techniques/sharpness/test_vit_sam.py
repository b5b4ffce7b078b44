"""The Hessian's largest eigenvalue against dense algebra, the probes against other hooks, and SAM with another rho."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.loop.run import Run
from suite.record.job import canonical
from suite.record.schema import Evaluation, Learned
from techniques.sharpness.shared import sharpness
from techniques.sharpness.shared.sharpness import hessian_product, largest_eigenvalue
from techniques.sharpness.vit_sam.study import RADII, Row, plot, row, study
from techniques.sharpness.vit_sam.technique import VitSam, active_shares
from tests.factories import with_curve
from tests.runs import new_run


def new(stack: str, **options: Any) -> Run:
    return new_run("vit", stack, **({"recipe": "classic", "seed": 1, "steps": 4} | options))


@given(seed=st.integers(0, 10_000), size=st.integers(1, 8), shift=st.floats(-5, 5))
@settings(max_examples=60, deadline=None)
def test_as_many_steps_as_dimensions_give_the_largest_eigenvalue_not_the_largest_in_size(
    seed: int, size: int, shift: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix = root + root.T + shift * torch.eye(size, dtype=torch.float64)
    start = torch.randn(size, generator=generator, dtype=torch.float64)
    found = largest_eigenvalue(lambda v: matrix @ v, start, size)
    torch.testing.assert_close(found, torch.linalg.eigvalsh(matrix)[-1], rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_fewer_steps_bound_it_from_below_and_grow(seed: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    matrix, start = root + root.T, torch.randn(20, generator=generator, dtype=torch.float64)
    found = [largest_eigenvalue(lambda v: matrix @ v, start, count).item() for count in (steps, steps + 1)]
    quotient = (start @ matrix @ start / (start @ start)).item()
    assert quotient <= found[0] + 1e-9 <= found[1] + 2e-9 <= torch.linalg.eigvalsh(matrix)[-1].item() + 3e-9


def test_a_start_inside_an_eigenspace_stops_instead_of_dividing_by_zero() -> None:
    found = largest_eigenvalue(lambda v: 3 * v, torch.ones(5), 4)
    assert found.item() == pytest.approx(3)


def test_hessian_of_a_small_network() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randint(0, 4, (7,))
    weights = [torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]

    def loss(first: Tensor, second: Tensor) -> Tensor:
        return nn.functional.cross_entropy(nn.functional.gelu(x @ first.T) @ second.T, y)

    blocks: Any = torch.autograd.functional.hessian(loss, tuple(weights))
    rows = [torch.cat([each.reshape(w.numel(), -1) for each in line], 1) for w, line in zip(weights, blocks)]
    dense = torch.cat(rows)
    leaves = [each.requires_grad_() for each in weights]
    product = hessian_product(torch.autograd.grad(loss(*leaves), leaves, create_graph=True), leaves)
    vector = torch.randn(35, dtype=torch.float64)
    torch.testing.assert_close(product(vector), dense @ vector)
    torch.testing.assert_close(largest_eigenvalue(product, vector, 35), torch.linalg.eigvalsh(dense)[-1])


def test_it_is_sam_with_another_radius() -> None:
    ours, theirs = new("vit_sam"), new("sam:rho=0.2")
    assert ours.train(3) == theirs.train(3)
    assert all(torch.equal(a, b) for a, b in zip(ours.model.parameters(), theirs.model.parameters()))


def test_active_units_are_those_whose_gelu_is_positive() -> None:
    run = new("vit_sam")
    outputs: list[float] = []
    activations = [module for module in run.model.modules() if isinstance(module, nn.GELU)]
    for module in activations:
        module.register_forward_hook(lambda _, __, out: outputs.append((out > 0).float().mean().item()))
    batch, _ = run.next_batch()
    with active_shares(run.anatomy.blocks) as shares:
        run.forward(batch)
    assert shares == pytest.approx(outputs) and len(shares) == run.anatomy.depth == len(activations)
    run.forward(batch)
    assert len(shares) == run.anatomy.depth, "the hooks are gone"


def test_probes_leave_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharpness, "LANCZOS_STEPS", 2)
    run, untouched = new("vit_sam"), new("vit_sam")
    assert run.train(2) == untouched.train(2)
    before = [p.detach().clone() for p in run.model.parameters()]
    random, own = torch.get_rng_state(), run.generator.get_state()
    found = run.technique.probes(run)
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters()))
    assert torch.equal(random, torch.get_rng_state()) and torch.equal(own, run.generator.get_state())
    assert run.model.training and run.train(2) == untouched.train(2)
    assert all(math.isfinite(value) for value in found.values())
    assert 0 < found["vit_sam.active_share_first"] < 1


def test_probes_agree_under_fused_attention_and_without_rho(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernels have no second derivative. Rho 0 is the reference, probed in the same way."""
    monkeypatch.setattr(sharpness, "LANCZOS_STEPS", 3)
    plain, fused = (VitSam(rho=0.0).probes(new("vit_sam", recipe=recipe)) for recipe in ("classic", "modern"))
    assert plain == pytest.approx(fused, rel=1e-3)
    assert plain["ascent_rise"] > 0, "up along the gradient"


def contender(rho: float, eigenvalue: float, status: Any = "ok") -> Learned:
    probes = {
        f"vit_sam.{name}": eigenvalue for name in ("lambda_max", "ascent_rise", "active_share", "active_share_first")
    }
    curve = [Evaluation(step=4, loss=2.0 - rho, metrics={"accuracy": 0.5})]
    return with_curve(f"vit_sam:rho={rho}", curve, status=status, probes=probes)


def test_study_takes_the_medians_of_the_seeds_that_finished() -> None:
    made = row(0.2, [contender(0.2, value) for value in (1.0, 9.0, 2.0)] + [contender(0.2, 50.0, "failed")])
    assert made is not None and (made.seeds, made.lambda_max, made.test_loss) == (3, 2.0, 1.8)
    assert row(0.2, [contender(0.2, 1.0, "failed")]) is None

    stacks = {canonical(f"vit_sam:rho={rho}"): rho for rho in RADII}
    runs = {stack: [(contender(0.0, 1.0), contender(rho, 1.0))] for stack, rho in stacks.items()}
    lab: Any = SimpleNamespace(runs=lambda names: {canonical(name): runs[canonical(name)] for name in names})
    (table,) = study(lab)
    assert [Row(*each).rho for each in table.rows] == list(RADII)
    assert len(plot([table]).axes) == 2
