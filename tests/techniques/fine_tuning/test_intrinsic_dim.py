"""Walsh-Hadamard transform and Fastfood against dense matrices, and training in a subspace against plain weights."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.loop.data import generator
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from techniques.fine_tuning.intrinsic_dim import study
from techniques.fine_tuning.intrinsic_dim.hadamard import walsh_hadamard
from techniques.fine_tuning.intrinsic_dim.technique import (
    SUBSPACE,
    IntrinsicDimension,
    Projected,
    Subspace,
    fastfood,
    padded,
)
from tests.model.further_models import further_run
from tests.runs import new_run


def hadamard(n: int) -> Tensor:
    """Sylvester's matrix by its entries: the sign of the parity of the bits that row and column share."""
    parity = [[(row & column).bit_count() % 2 for column in range(n)] for row in range(n)]
    return 1.0 - 2.0 * torch.tensor(parity, dtype=torch.float64)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(shape[-1]), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 256])
def test_the_transform_is_the_product_with_the_matrix(n: int) -> None:
    x = drawn(3, 2, n)
    torch.testing.assert_close(walsh_hadamard(x), x @ hadamard(n), rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(walsh_hadamard(walsh_hadamard(x)), n * x, rtol=1e-12, atol=1e-11)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 9), st.integers(1, 3))
def test_lengths_grow_by_sqrt_n_and_integers_stay_exact(bits: int, rows: int) -> None:
    n = 2**bits
    x = torch.randint(-50, 50, (rows, n), generator=generator(n)).float()
    assert torch.equal(walsh_hadamard(walsh_hadamard(x)), n * x)
    assert walsh_hadamard(x).norm().item() == pytest.approx(math.sqrt(n) * x.norm().item(), rel=1e-5)


def test_the_gradient_is_the_transform_and_not_a_share_of_it() -> None:
    x = drawn(2, 16).requires_grad_()
    assert torch.autograd.gradcheck(walsh_hadamard, x)
    assert torch.autograd.gradgradcheck(walsh_hadamard, x)
    (gradient,) = torch.autograd.grad(walsh_hadamard(x).sum(), x)
    assert torch.equal(gradient, torch.tensor([[16.0, *[0.0] * 15]] * 2, dtype=torch.float64))


@pytest.mark.parametrize("n", [0, 3, 12])
def test_other_sizes_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"a power of 2 numbers, not {n}"):
        walsh_hadamard(torch.zeros(2, n))


def parts(count: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """B, Pi and G as the technique draws them, in float64."""
    projected = Projected(torch.zeros(size), Subspace(count, 0, torch.zeros(1)), None, generator(seed))
    signs, places, gains = projected.signs, projected.places, projected.gains
    return signs.double(), places, gains.double()  # type: ignore[operator,return-value]


@pytest.mark.parametrize(("count", "size"), [(5, 24), (24, 5), (16, 16), (1, 7), (8, 64)])
def test_fastfood_is_the_product_with_its_matrices(count: int, size: int) -> None:
    """H G Pi H B / (divisor sqrt(D / n)), the divisor being sqrt(n sum G^2), with Pi a whole permutation."""
    signs, _, gains = parts(count, size)
    n = padded(max(count, size))
    permutation = torch.randperm(n, generator=generator(0))
    h, b = hadamard(n), torch.diag(torch.cat([signs, torch.ones(n - count, dtype=torch.float64)]))
    divisor = (n * gains.square().sum()).sqrt() * math.sqrt(size / n)
    dense = (h @ torch.diag(gains) @ torch.eye(n, dtype=torch.float64)[permutation] @ h @ b / divisor)[:size, :count]
    z = drawn(count).requires_grad_()
    places = (permutation % padded(count)).int()
    torch.testing.assert_close(fastfood(z, signs, places, gains, size), dense @ z, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: fastfood(z, signs, places, gains, size), z)


def test_columns_have_length_1_exactly_where_no_row_is_left_out_and_else_on_average() -> None:
    for size in (64, 40):
        lengths = []
        for seed in range(30):
            signs, places, gains = parts(8, size, seed)
            columns = torch.stack([fastfood(each, signs, places, gains, size) for each in torch.eye(8).double()])
            lengths.append(columns.square().sum(1))
        squares = torch.stack(lengths)
        assert squares.mean().item() == pytest.approx(1, rel=1e-12 if size == 64 else 0.03)
        if size == 64:
            torch.testing.assert_close(squares, torch.ones_like(squares))


def adapting(baseline: str, steps: int = 4, **options: Any) -> Run:
    spelled = ",".join(f"{key}={value}" for key, value in options.items())
    stack = f"intrinsic_dim:{spelled}" if spelled else "intrinsic_dim"
    return new_run(baseline, stack, size="pico", recipe="classic", task="adapt", steps=steps)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """As modules see them, by the name of each place."""
    return {
        f"{path}.{name}".lstrip("."): getattr(module, name)
        for path, module in model.named_modules()
        if "parametrizations" in module._modules
        for name in module.parametrizations  # type: ignore[union-attr,operator]
    }


def columns(run: Run) -> dict[str, Tensor]:
    """By place, how the weights move with each number of z, [d, ...]; z is 0 afterwards."""
    z = run.model.get_submodule(SUBSPACE).z
    rows = []
    with torch.no_grad():
        for each in (torch.zeros_like(z), *torch.eye(len(z))):
            z.copy_(each)
            rows.append({name: weight.clone() for name, weight in weights(run.model).items()})
        z.zero_()
    start, *moved = rows
    return {name: torch.stack([row[name] - each for row in moved]) for name, each in start.items()}


@pytest.mark.parametrize("structure_aware", [False, True])
@pytest.mark.parametrize("baseline", ["bert", "vit"])
def test_gradients_are_those_of_plain_weights_through_dense_columns(baseline: str, structure_aware: bool) -> None:
    run = adapting(baseline, dimension=12, structure_aware=structure_aware)
    plain = new_run(baseline, size="pico", recipe="classic", task="adapt", steps=4)
    subspace, blocks = run.model.get_submodule(SUBSPACE), [f"{block.path}." for block in plain.anatomy.blocks]
    assert len(subspace.z) == 12 - (len(blocks) if structure_aware else 0)
    dense = columns(run)
    with torch.no_grad():  # away from 0, where scales have no gradient
        subspace.z.copy_(0.1 * torch.randn(len(subspace.z), generator=generator(7)))
        moves = {name: torch.tensordot(subspace.z, each, 1) for name, each in dense.items()}
        for name, each in plain.model.named_parameters():
            each += moves.get(name, 0)
    batch, _ = plain.data.batch(0, 0, 4)
    for one in (run, plain):
        one.baseline.losses(one.baseline.forward(one.model, batch), batch).mean().backward()

    gradients = {name: each.grad for name, each in plain.model.named_parameters() if name in dense}
    expected = sum((dense[name] * each).flatten(1).sum(1) for name, each in gradients.items())
    torch.testing.assert_close(subspace.z.grad, expected, rtol=1e-3, atol=1e-5)
    if structure_aware:
        of_scales = [
            sum((each * moves[name]).sum() for name, each in gradients.items() if name.startswith(block))
            for block in blocks
        ]
        torch.testing.assert_close(subspace.scales.grad, torch.stack(of_scales), rtol=1e-3, atol=1e-5)


def test_tied_places_are_one_parameter() -> None:
    run = adapting("bert", dimension=50)
    run.train(2)
    plain = new_run("bert", size="pico", recipe="classic", task="adapt").model
    now, places = weights(run.model), dict(plain.named_parameters(remove_duplicate=False))
    tied = [name for name, each in places.items() if sum(each is other for other in places.values()) > 1]
    assert tied
    for name in tied:
        twins = [other for other in tied if places[other] is places[name]]
        assert all(torch.equal(now[name], now[other]) for other in twins)
        assert not torch.equal(now[name], places[name])


def test_its_state_holds_no_projection() -> None:
    state = adapting("vit", dimension=60).model.state_dict()
    assert not any(name.endswith(("signs", "places", "gains")) for name in state)


@pytest.mark.parametrize("name", ["albert", "t5", "swin", "beit", "cait"])
def test_trains_models_of_users(name: str) -> None:
    """With one block that stands for all, two stacks, and blocks with parameters of their own (BEiT's, CaiT's)."""
    run = further_run(name, IntrinsicDimension(dimension=64))
    run.train(2)
    assert run.model.get_submodule(SUBSPACE).z.abs().max() > 0
    assert len(run.model.get_submodule(SUBSPACE).scales) == len(anatomy(run.model).every_block)


@pytest.mark.parametrize("dimension", [2, 10**7])
def test_a_subspace_that_does_not_fit_is_refused(dimension: int) -> None:
    with pytest.raises(ValueError, match="does not fit: more than the 2 scales"):
        adapting("bert", dimension=dimension)


@pytest.mark.parametrize(("start", "least"), [(0.05, (1000, None)), (0.9, (0, 0))])
def test_the_study_has_the_smallest_dimension_that_is_enough(start: float, least: tuple[int | None, ...]) -> None:
    """Of accuracies that grow with d: to 0.85 of full fine-tuning's 0.8 at 300, and 0.95 of it at 1000."""
    shares = dict(zip(study.DIMENSIONS, (0.1, 0.3, 0.6, 0.85, 0.95, 1.0), strict=True))

    def runs(stacks: list[str]) -> dict[str, list[Any]]:
        curve = [SimpleNamespace(loss=2.0, metrics={"accuracy": each}) for each in (0.7 * start, 0.4, 0.7)]
        end = SimpleNamespace(loss=0.5, metrics={"accuracy": 0.8})
        fulls = [SimpleNamespace(final=end, curve=curve, seed=seed) for seed in (0, 1)]
        ends = {}
        for stack in stacks:
            dimension = next((d for d in study.DIMENSIONS if f"dimension={d}," in f"{stack},"), 1000)  # the default
            own = SimpleNamespace(final=SimpleNamespace(loss=1.0, metrics={"accuracy": 0.8 * shares[dimension]}))
            ends[stack] = [] if "=false" in stack and dimension > 300 else [(full, own) for full in fulls]
        return ends

    tables = study.study(SimpleNamespace(runs=runs))  # type: ignore[arg-type]
    before, *points = [study.Point(*each) for each in tables[0].rows]
    assert before == study.Point("before", 0, 2, 2.0, pytest.approx(0.7 * start), pytest.approx(start))
    assert [each.dimension for each in points if each.method == "SAID"] == list(study.DIMENSIONS)
    assert {each.seeds for each in points} == {2}
    assert points[0].share == pytest.approx(0.1) and points[0].accuracy == pytest.approx(0.08)
    assert tables[1].rows == list(zip(("SAID", "DID"), least, strict=True))
    assert len(study.plot(tables).axes[0].lines) == 4
