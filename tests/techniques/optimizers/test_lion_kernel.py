"""The fused Lion update under the interpreter, against the paper's formula: in float64, and to the bit in float32."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

kernel = pytest.importorskip("techniques.optimizers.lion.kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")
parts = pytest.importorskip("suite.kernels.optimizer_parts")
BLOCK, PIECE, launch_tables, lion_step = parts.BLOCK, parts.PIECE, kernel.launch_tables, kernel.lion_step

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

HYPER = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5}
SHAPES = [(), (1,), (0,), (3, 5), (PIECE - 1,), (PIECE + 1,), (BLOCK,), (2 * BLOCK + 77,), (64, 33)]
Lists = tuple[list[Tensor], list[Tensor], list[Tensor]]


def _lists(
    shapes: list[tuple[int, ...]] = SHAPES,
    parameter: torch.dtype = torch.float32,
    momentum: torch.dtype = torch.float32,
    gradient: torch.dtype = torch.float32,
) -> Lists:
    """Parameters, gradients, momenta."""
    generator = torch.Generator().manual_seed(0)
    return tuple(
        [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        for dtype in (parameter, gradient, momentum)
    )


def _formula(p: Tensor, g: Tensor, m: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Algorithm 2 with torch operators in ``dtype``, returned in the tensors' own dtypes."""
    lr, beta1, beta2, weight_decay = HYPER.values()
    wide_p, wide_g, wide_m = p.to(dtype), g.to(dtype), m.to(dtype)
    u = (wide_m * beta1 + wide_g * (1 - beta1)).sign()
    return (wide_p * (1 - lr * weight_decay) - u * lr).to(p.dtype), (wide_m * beta2 + wide_g * (1 - beta2)).to(m.dtype)


def _equal(got: Tensor, expected: Tensor) -> bool:
    return got.dtype == expected.dtype and torch.allclose(got, expected, rtol=0, atol=0, equal_nan=True)


def _step_equals_formula(parameters: list[Tensor], gradients: list[Tensor], momenta: list[Tensor]) -> bool:
    expected = [_formula(p, g, m) for p, g, m in zip(parameters, gradients, momenta)]
    lion_step(parameters, gradients, momenta, launch_tables(), **HYPER)
    return all(_equal(p, new_p) and _equal(m, new_m) for p, m, (new_p, new_m) in zip(parameters, momenta, expected))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The grid sizes of the launches made so far."""
    grids: list[int] = []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid[0])
            return lion_kernel[grid]

    lion_kernel = kernel.lion_kernel
    monkeypatch.setattr(kernel, "lion_kernel", Counted())
    return grids


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
    ],
    ids=lambda dtypes: "-".join(str(dtype).removeprefix("torch.") for dtype in dtypes),
)
def test_step_is_the_formula_to_the_bit(dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]) -> None:
    assert _step_equals_formula(*_lists(SHAPES, *dtypes))


def test_float32_agrees_with_float64_where_the_sign_is_certain() -> None:
    """Float32 cannot know the sign of beta1 m + (1 - beta1) g where that is smaller than its own rounding."""
    parameters, gradients, momenta = _lists()
    old = [tuple(tensor.double() for tensor in column) for column in zip(parameters, gradients, momenta)]
    lion_step(parameters, gradients, momenta, launch_tables(), **HYPER)
    for p, m, (old_p, old_g, old_m) in zip(parameters, momenta, old):
        expected_p, expected_m = _formula(old_p, old_g, old_m, torch.float64)
        size = HYPER["beta1"] * old_m.abs() + (1 - HYPER["beta1"]) * old_g.abs()
        certain = (HYPER["beta1"] * old_m + (1 - HYPER["beta1"]) * old_g).abs() > 4 * torch.finfo(
            torch.float32
        ).eps * size
        assert torch.allclose(p.double()[certain], expected_p[certain], rtol=1e-6, atol=1e-7)
        assert torch.allclose(m.double(), expected_m, rtol=1e-6, atol=1e-7)


def test_sign_at_cancellation_is_that_of_the_formula_as_written() -> None:
    """(m - g) beta1 + g, equal on paper, has another sign at exact cancellation."""
    generator = torch.Generator().manual_seed(2)
    m = torch.randn(BLOCK, generator=generator)
    g = -(m * HYPER["beta1"]) / (1 - HYPER["beta1"])
    beta1 = torch.tensor(HYPER["beta1"])
    assert (((m - g) * beta1 + g).sign() != (m * beta1 + g * (1 - HYPER["beta1"])).sign()).any()
    assert _step_equals_formula([torch.zeros(BLOCK)], [g], [m])


def test_sign_of_zero_is_zero() -> None:
    """Without gradient or momentum a parameter only decays, -0.0 included."""
    p = torch.randn(100)
    zeros = torch.zeros(100)
    expected = p * (1 - HYPER["lr"] * HYPER["weight_decay"])
    lion_step([p], [-zeros], [zeros], launch_tables(), **HYPER)
    assert torch.equal(p, expected)
    assert torch.equal(zeros, torch.zeros(100))


def test_every_coordinate_moves_by_the_learning_rate() -> None:
    p, g, m = torch.zeros(1000), torch.randn(1000), torch.zeros(1000)
    lion_step([p], [g], [m], launch_tables(), **HYPER)
    assert p.abs().unique().tolist() == [torch.tensor(HYPER["lr"]).item()]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38, 1e-45])
def test_extreme_gradients_stay_where_they_are(value: float) -> None:
    parameters, gradients, momenta = _lists([(PIECE + 5,), (7,)])
    gradients[0][3] = gradients[1][6] = value
    assert _step_equals_formula(parameters, gradients, momenta)
    finite = gradients[0].isfinite() & (gradients[0].abs() < 1e30)
    assert momenta[0][finite].abs().max() < 10
    assert parameters[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("odd", ["parameters", "gradients", "momenta", "all"])
def test_views_at_odd_addresses(dtype: torch.dtype, odd: str) -> None:
    columns = dict(zip(("parameters", "gradients", "momenta"), _lists([(BLOCK,), (BLOCK + 9,)], dtype, dtype, dtype)))
    for name, tensors in columns.items():
        if odd in (name, "all"):
            columns[name] = [torch.cat([tensor[:1], tensor])[1:] for tensor in tensors]
            assert all(tensor.data_ptr() % 16 for tensor in columns[name])
    assert _step_equals_formula(*columns.values())


def test_memory_around_a_view_is_untouched() -> None:
    flat = torch.full((3 * BLOCK,), 5.0)
    view = flat[1 : BLOCK + 1]
    lion_step([view], [torch.ones(BLOCK)], [torch.zeros(BLOCK)], launch_tables(), **HYPER)
    assert (view != 5).all()
    assert flat[0] == 5
    assert (flat[BLOCK + 1 :] == 5).all()


def test_any_number_of_tensors_is_one_launch(launches: list[int]) -> None:
    columns = _lists([(size % 7,) for size in range(300)])
    assert _step_equals_formula(*columns)
    assert launches == [sum(size % 7 > 0 for size in range(300))]


def test_each_combination_of_dtypes_is_one_launch(launches: list[int]) -> None:
    parameters, gradients, momenta = _lists([(5,)] * 4)
    parameters[1:3] = [tensor.bfloat16() for tensor in parameters[1:3]]
    gradients[1:3] = [tensor.bfloat16() for tensor in gradients[1:3]]
    assert _step_equals_formula(parameters, gradients, momenta)
    assert launches == [2, 2]


def test_nothing_to_do_launches_nothing(launches: list[int]) -> None:
    lion_step([], [], [], launch_tables(), **HYPER)
    lion_step([torch.zeros(0)], [torch.zeros(0)], [torch.zeros(0)], launch_tables(), **HYPER)
    assert launches == []


def test_many_steps_with_new_gradients_follow_the_formula() -> None:
    parameters, gradients, momenta = _lists([(40,), (PIECE + 3,)])
    expected = [(p.clone(), m.clone()) for p, m in zip(parameters, momenta)]
    tables = launch_tables()
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        gradients = [torch.randn(p.shape, generator=generator) for p in parameters]
        expected = [_formula(p, g, m) for (p, m), g in zip(expected, gradients)]
        lion_step(parameters, gradients, momenta, tables, **HYPER)
    assert all(_equal(p, new_p) and _equal(m, new_m) for p, m, (new_p, new_m) in zip(parameters, momenta, expected))


def test_autograd_sees_that_the_parameter_changed() -> None:
    p = torch.nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    lion_step([p], [torch.ones(4)], [torch.zeros(4)], launch_tables(), **HYPER)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_other_dtypes_are_refused_before_anything_changed() -> None:
    good, bad = torch.ones(4), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        lion_step([good, bad], [good.clone(), bad.clone()], [good.clone(), bad.clone()], launch_tables(), **HYPER)
    assert torch.equal(good, torch.ones(4))
