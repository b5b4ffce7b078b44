"""The fused AdamW update under the interpreter, against the formula in float64, float32 (to the bit) and torch's."""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor, nn

kernel = pytest.importorskip("techniques.shared.adam_kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")
parts = pytest.importorskip("suite.kernels.optimizer_parts")
BLOCK, PIECE, launch_tables = parts.BLOCK, parts.PIECE, kernel.launch_tables
adamw_step = partial(kernel.adam_step, decoupled=True)

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

HYPER = {"step": 3, "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.5}
SHAPES = [(), (1,), (0,), (3, 5), (PIECE - 1,), (PIECE + 1,), (BLOCK,), (2 * BLOCK + 77,), (64, 33)]
FLOAT32 = (torch.float32,) * 3
Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def _lists(shapes: list[tuple[int, ...]] = SHAPES, dtypes: tuple[torch.dtype, ...] = FLOAT32, seed: int = 0) -> Lists:
    """Parameters, gradients, first and second moments; ``dtypes`` of parameters, gradients, moments."""
    generator = torch.Generator().manual_seed(seed)
    p, g, m, v = (
        [torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for dtype in (*dtypes, dtypes[2])
    )
    return p, g, m, [each.abs() for each in v]


def _formula(p: Tensor, g: Tensor, m: Tensor, v: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Algorithm 2 with torch's operators in ``dtype``, but numpy's square root: torch's is off by one bit at times."""
    step, lr, beta1, beta2, eps, weight_decay = HYPER.values()
    p, g, m, v = (each.to(dtype) for each in (p, g, m, v))
    m = m * beta1 + g * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    deviation = torch.as_tensor(np.sqrt(v.numpy())) * (1 / math.sqrt(1 - beta2**step)) + eps
    return [p * (1 - lr * weight_decay) - m / deviation * (lr / (1 - beta1**step)), m, v]


def _equal(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected.to(got.dtype), rtol=0, atol=0, equal_nan=True)


def _step_is_formula(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]) -> bool:
    expected = [_formula(*column, torch.float32) for column in zip(p, g, m, v)]
    adamw_step(p, g, m, v, launch_tables(), **HYPER)
    return all(_equal(*pair) for column, new in zip(zip(p, m, v), expected) for pair in zip(column, new))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The grid sizes of the launches made so far."""
    grids: list[int] = []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid[0])
            return adam_kernel[grid]

    adam_kernel = kernel.adam_kernel
    monkeypatch.setattr(kernel, "adam_kernel", Counted())
    return grids


@pytest.mark.parametrize(
    "dtypes",
    [FLOAT32, (torch.bfloat16, torch.bfloat16, torch.float32), (torch.bfloat16,) * 3],
    ids=["float32", "bfloat16", "bfloat16_moments"],
)
def test_step_is_the_formula_to_the_bit(dtypes: tuple[torch.dtype, ...]) -> None:
    assert _step_is_formula(*_lists(SHAPES, dtypes))


def test_step_agrees_with_float64_within_the_roundings_of_its_chain() -> None:
    lists = _lists()
    expected = [_formula(*column, torch.float64) for column in zip(*lists)]
    adamw_step(*lists, launch_tables(), **HYPER)
    p, _, m, v = lists
    for got, new in zip(zip(p, m, v), expected):
        for a, b in zip(got, new):
            torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=1e-6)


def test_many_steps_are_torchs_within_rounding() -> None:
    weights, _, _, _ = _lists([(40,), (PIECE + 3,)])
    theirs = [nn.Parameter(each.clone()) for each in weights]
    optimizer = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.99), weight_decay=0.5, fused=True)
    m, v = ([torch.zeros_like(each) for each in weights] for _ in range(2))
    tables = launch_tables()
    for step in range(1, 7):
        gradients = _lists([(40,), (PIECE + 3,)], seed=step)[1]
        for parameter, gradient in zip(theirs, gradients):
            parameter.grad = gradient.clone()
        optimizer.step()
        adamw_step(weights, gradients, m, v, tables, **HYPER | {"step": step})
        for own, their in zip(weights, theirs):
            torch.testing.assert_close(own, their.data, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38, 1e-45])
def test_extreme_gradients_stay_where_they_are(value: float) -> None:
    lists = _lists([(PIECE + 5,), (7,)])
    p, g, m, v = lists
    g[0][3] = g[1][6] = value
    assert _step_is_formula(*lists)
    others = torch.arange(PIECE + 5) != 3
    assert all(each[0][others].isfinite().all() for each in (p, m, v))


def test_without_gradient_or_moments_a_parameter_only_decays() -> None:
    p = torch.randn(100)
    expected = p * (1 - HYPER["lr"] * HYPER["weight_decay"])
    m, v = torch.zeros(100), torch.zeros(100)
    adamw_step([p], [torch.zeros(100)], [m], [v], launch_tables(), **HYPER)
    assert torch.equal(p, expected)
    assert not m.any() and not v.any()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_moments_do_not_see_the_parameter(value: float) -> None:
    """Not even as 0 times an infinity."""
    lists = _lists([(PIECE + 5,)])
    lists[0][0][3] = value
    assert _step_is_formula(*lists)
    assert lists[2][0].isfinite().all() and lists[3][0].isfinite().all()


@pytest.mark.parametrize("dtypes", [FLOAT32, (torch.bfloat16,) * 3], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("which", [0, 1, 2, 3, None])
def test_views_at_odd_addresses(dtypes: tuple[torch.dtype, ...], which: int | None) -> None:
    lists = list(_lists([(BLOCK,), (9,)], dtypes))
    for number, tensors in enumerate(lists):
        if which in (number, None):
            lists[number] = [torch.cat([tensor[:1], tensor])[1:] for tensor in tensors]
            assert all(tensor.data_ptr() % 16 for tensor in lists[number])
    assert _step_is_formula(*lists)


def test_memory_around_a_view_is_untouched() -> None:
    flat = torch.full((3 * BLOCK,), 5.0)
    adamw_step(
        [flat[1 : BLOCK + 1]], [torch.ones(BLOCK)], [torch.zeros(BLOCK)], [torch.zeros(BLOCK)], launch_tables(), **HYPER
    )
    assert (flat[1 : BLOCK + 1] != 5).all()
    assert flat[0] == 5 and (flat[BLOCK + 1 :] == 5).all()


def test_scaled_and_clipped_gradients_are_those_unscaled_and_clipped_beforehand() -> None:
    """By powers of two, which round nothing; the gradients themselves stay as they are."""
    lists, same = _lists(), _lists()
    scaled = [64 * gradient for gradient in lists[1]]
    kept = [gradient.clone() for gradient in scaled]
    adamw_step(
        lists[0],
        scaled,
        *lists[2:],
        launch_tables(),
        **HYPER,
        clip=torch.tensor([0.25 / 128]),
        found_inf=torch.tensor(0.0),
    )
    adamw_step(same[0], [0.125 * each for each in same[1]], *same[2:], launch_tables(), **HYPER)
    assert all(map(torch.equal, scaled, kept))
    for own, theirs in zip((lists[0], *lists[2:]), (same[0], *same[2:])):
        assert all(map(_equal, own, theirs))


def test_a_step_with_an_infinite_gradient_somewhere_is_left_out() -> None:
    lists = _lists([(5,), (BLOCK,)])
    before = copy.deepcopy(lists)
    adamw_step(*lists, launch_tables(), **HYPER, found_inf=torch.tensor(1.0))
    assert all(torch.equal(*pair) for pair in zip(chain(*lists), chain(*before)))


@pytest.mark.parametrize("scalar", [torch.ones(2), torch.tensor(1), torch.ones((), device="meta")])
def test_a_scalar_that_the_kernel_would_misread_is_refused(scalar: Tensor) -> None:
    with pytest.raises(ValueError, match="give one float32"):
        adamw_step(*_lists([(5,)]), launch_tables(), **HYPER, clip=scalar)


def _stochastic(seed: int, p: Tensor) -> Tensor:
    """bfloat16 ``p`` after a step without gradient: decay alone, 1 - 0.005."""
    p = p.clone()
    zeros = torch.zeros_like(p)
    adamw_step([p], [zeros], [zeros.float()], [zeros.float()], launch_tables(), **HYPER, seed=seed)
    return p


def test_stochastic_rounding_is_unbiased_and_goes_to_a_neighbour() -> None:
    """Of one number, 2**17 times: the mean within four standard errors, where rounding to nearest is off by 200."""
    p = torch.full((2**17,), 1.1, dtype=torch.bfloat16)
    exact = (p[0].float() * (1 - HYPER["lr"] * HYPER["weight_decay"])).double()
    rounded = _stochastic(1, p).double()
    lower, upper = rounded.unique().tolist()
    assert upper - lower == torch.finfo(torch.bfloat16).eps and lower < exact < upper
    share = (exact - lower) / (upper - lower)
    error = (share * (1 - share) / p.numel()).sqrt()
    assert abs((rounded == upper).double().mean() - share) < 4 * error
    assert min(share, 1 - share) > 200 * error


def test_stochastic_rounding_draws_anew_for_each_seed_tensor_and_element() -> None:
    p = torch.full((8 * BLOCK,), 1.1, dtype=torch.bfloat16)
    first, again, other = _stochastic(1, p), _stochastic(1, p), _stochastic(2, p)
    assert torch.equal(first, again)
    pair = [p.clone(), p.clone()]
    zeros = [torch.zeros_like(p)] * 2
    moments = [[torch.zeros(8 * BLOCK) for _ in pair] for _ in range(2)]
    adamw_step(pair, zeros, *moments, launch_tables(), **HYPER, seed=1)
    assert torch.equal(pair[0], first)
    for a, b in ((first, other), (first, pair[1]), (first[:-1], first[1:]), (first[:BLOCK], first[BLOCK : 2 * BLOCK])):
        a, b = (each.double() - each.double().mean() for each in (a, b))
        assert abs((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt()) < 4 / math.sqrt(a.numel())


def test_what_is_exact_in_bfloat16_is_not_rounded_away() -> None:
    """NaN, infinities and numbers without a fraction stay whatever the bits drawn; tails draw as whole blocks do."""
    p = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5] * 300, dtype=torch.bfloat16)
    zeros = torch.zeros(1800)
    got = p.clone()
    adamw_step(
        [got], [zeros.bfloat16()], [zeros], [zeros.clone()], launch_tables(), **HYPER | {"weight_decay": 0.0}, seed=5
    )
    assert _equal(got, p)


def test_float32_parameters_are_not_rounded_stochastically() -> None:
    lists, same = _lists([(300,)]), _lists([(300,)])
    adamw_step(*lists, launch_tables(), **HYPER, seed=3)
    adamw_step(*same, launch_tables(), **HYPER)
    assert torch.equal(lists[0][0], same[0][0])


def test_any_number_of_tensors_is_one_launch(launches: list[int]) -> None:
    assert _step_is_formula(*_lists([(size % 7,) for size in range(60)]))
    assert launches == [sum(size % 7 > 0 for size in range(60))]


def test_nothing_to_do_launches_nothing(launches: list[int]) -> None:
    adamw_step([], [], [], [], launch_tables(), **HYPER)
    adamw_step(*([torch.zeros(0)] for _ in range(4)), launch_tables(), **HYPER)
    assert launches == []


def test_other_dtypes_are_refused_before_anything_changed() -> None:
    good, bad = torch.ones(4), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        adamw_step(*([good.clone(), bad.clone()] for _ in range(4)), launch_tables(), **HYPER)
    with pytest.raises(TypeError, match="give both one dtype"):
        adamw_step([good], [good.clone()], [good.clone()], [good.bfloat16()], launch_tables(), **HYPER)
    assert torch.equal(good, torch.ones(4))


def test_autograd_sees_that_the_parameter_changed() -> None:
    p = nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    adamw_step([p], [torch.ones(4)], [torch.zeros(4)], [torch.zeros(4)], launch_tables(), **HYPER)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
