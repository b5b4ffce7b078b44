"""SAM's three launches up the ball, under the interpreter, against the formula and torch's operators."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from techniques.sharpness.shared import ascent

kernel = pytest.importorskip("techniques.sharpness.shared.ascent_kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")
optimizer_parts = pytest.importorskip("suite.kernels.optimizer_parts")
BLOCK, PIECE = optimizer_parts.BLOCK, optimizer_parts.PIECE
ascend, launch_tables = kernel.ascend, kernel.launch_tables

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

RHO = 5.0  # large, so that bfloat16 parameters show the step
SHAPES = [(), (1,), (0,), (3, 5), (PIECE - 1,), (PIECE + 1,), (BLOCK,), (2 * BLOCK + 77,), (64, 33)]
NAN, INF = float("nan"), float("inf")


def _lists(
    shapes: list[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and gradients."""
    generator = torch.Generator().manual_seed(0)
    p, g = ([torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for _ in range(2))
    return p, g


def _formula(parameters: list[Tensor], gradients: list[Tensor], rho: float = RHO) -> list[Tensor]:
    """Algorithm 1, in float64."""
    norm = torch.cat([gradient.double().flatten() for gradient in gradients]).norm()
    return [p.double() + rho * g.double() / (norm + 1e-12) for p, g in zip(parameters, gradients)]


def _close(got: Tensor, old: Tensor, new: Tensor) -> bool:
    """The result rounded once, and the step off by a dozen roundings, of the norm's sum above all: 8 epsilons."""
    bound = torch.finfo(got.dtype).eps * new.abs() + 8 * torch.finfo(torch.float32).eps * (new - old.double()).abs()
    return bool(((got.double() - new).abs() <= bound).all())


def _follows_formula(parameters: list[Tensor], gradients: list[Tensor], rho: float = RHO) -> None:
    before = [parameter.clone() for parameter in parameters]
    expected = _formula(parameters, gradients, rho)
    moved = ascend(parameters, gradients, rho, launch_tables())
    assert all(map(_close, moved, before, expected))
    assert all(map(torch.equal, parameters, before))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels launched so far."""
    names: list[str] = []

    class Counted:
        def __init__(self, name: str, kernel: Any) -> None:
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            names.append(self.name)
            return self.kernel[grid]

    for module, name in (
        (kernel, "ascend_kernel"),
        (kernel, "factor_kernel"),
        (optimizer_parts, "square_sums_kernel"),
    ):
        monkeypatch.setattr(module, name, Counted(name, getattr(module, name)))
    return names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ascent_follows_the_formula_and_leaves_the_weights_alone(dtype: torch.dtype) -> None:
    _follows_formula(*_lists(dtype=dtype))


def test_dtypes_mix_under_one_norm() -> None:
    parameters, gradients = _lists([(5,), (BLOCK + 3,), (40,)])
    parameters[1], gradients[1] = parameters[1].bfloat16(), gradients[1].bfloat16()
    _follows_formula(parameters, gradients)


def test_any_number_of_tensors_is_three_launches(launches: list[str]) -> None:
    parameters, gradients = _lists([(size % 7,) for size in range(60)])
    _follows_formula(parameters, gradients)
    assert launches == ["square_sums_kernel", "factor_kernel", "ascend_kernel"]


def test_more_blocks_than_programs_are_all_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for parameters of more than PARTIALS blocks: each program takes several, whole ones and tails."""
    monkeypatch.setattr(optimizer_parts, "PARTIALS", 4)
    _follows_formula(*_lists([(3 * BLOCK + 1,), (7,), (BLOCK,), (2 * BLOCK,), (PIECE,), (1,)]))


def test_the_same_bits_every_time() -> None:
    one, other = (ascend(*_lists(), RHO, launch_tables()) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("odd", [(0,), (1,), (0, 1)])
def test_views_at_odd_addresses(odd: tuple[int, ...]) -> None:
    lists = list(_lists([(BLOCK,), (9,)]))
    for number in odd:
        lists[number] = [torch.cat([tensor[:1], tensor])[1:] for tensor in lists[number]]
        assert all(tensor.data_ptr() % 16 for tensor in lists[number])
    _follows_formula(*lists)


def test_a_zero_gradient_perturbs_nothing() -> None:
    parameters, gradients = _lists()
    moved = ascend(parameters, [torch.zeros_like(gradient) for gradient in gradients], RHO, launch_tables())
    assert all(map(torch.equal, moved, parameters))


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_the_norm_is_not_finite_the_weights_stay(dtype: torch.dtype, value: float) -> None:
    """Of 1e30 the square is infinite."""
    parameters, gradients = _lists([(PIECE + 5,), (7,)], dtype)
    gradients[0][3] = value
    assert all(map(torch.equal, ascend(parameters, gradients, RHO, launch_tables(), seed=1), parameters))


@pytest.mark.parametrize(("seed", "low", "high"), [(None, 0.0, 0.5), (1, 0.98, 1.02)], ids=["nearest", "stochastic"])
def test_a_step_below_half_a_unit_in_the_last_place_is_not_lost(seed: int | None, low: float, high: float) -> None:
    """Along the gradient the way is rho with random bits, and falls short without. (Across, random bits add their own.)

    Weights of 0.02 are 1.2e-4 apart in bfloat16; a step of 1e-5 an element is that of rho 0.05 over 25 million.
    """
    generator = torch.Generator().manual_seed(0)
    before, gradient = (torch.randn(2**17, generator=generator) for _ in range(2))
    before, gradient = (0.02 * before).bfloat16(), gradient.bfloat16()
    rho = 1e-5 * math.sqrt(before.numel())
    (moved,) = ascend([before], [gradient], rho, launch_tables(), seed=seed)
    way = (moved.double() - before.double()) @ gradient.double() / gradient.double().norm()
    assert low < way / rho < high


def test_nothing_to_do_launches_nothing(launches: list[str]) -> None:
    assert ascend([], [], RHO, launch_tables()) == []
    (moved,) = ascend([torch.zeros(0)], [torch.zeros(0)], RHO, launch_tables())
    assert moved.shape == (0,)
    assert launches == []


def test_other_dtypes_are_refused() -> None:
    good, bad = torch.ones(4), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        ascend([good, bad], [good.clone(), bad.clone()], RHO, launch_tables())


def test_the_technique_on_a_gpu_is_the_technique_elsewhere(
    monkeypatch: pytest.MonkeyPatch, launches: list[str]
) -> None:
    """CPU tensors go the way of a GPU's; its tables stay in ``launch``."""
    parameters, gradients = _lists([(5, 3), (BLOCK + 1,)])
    ways: list[list[nn.Parameter]] = [[nn.Parameter(p.clone()) for p in parameters] for _ in range(2)]
    launch: dict[str, Any] = {}
    moved: dict[bool, list[Tensor]] = {}
    for own, taken in zip(ways, (False, True)):
        monkeypatch.setattr(ascent, "launchable", lambda tensors, taken=taken: taken)
        for _ in range(2):
            for parameter, gradient in zip(own, gradients):
                parameter.grad = gradient.clone()
            weights = ascent.ascend(own, 0.05, launch)
            moved[taken] = [parameter.detach().clone() for parameter in own]
            ascent.restore(own, weights)
            assert all(map(torch.equal, own, parameters))
    assert all(map(torch.allclose, moved[True], moved[False]))
    assert launches == ["square_sums_kernel", "factor_kernel", "ascend_kernel"] * 2
    assert launch.keys() == {"tables"}
