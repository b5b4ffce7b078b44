"""The two passes of LARS under the interpreter, against the optimizer's own torch form in float64."""

import math

import pytest
import torch
from torch import Tensor

from techniques.large_batch.lars import optimizer
from tests.techniques.large_batch.trust_lists import BLOCK, PIECE, SHAPES, misaligned, near, random_lists

kernel = pytest.importorskip("techniques.large_batch.lars.kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
HYPER = {
    "learning_rate": 0.5,
    "momentum": 0.9,
    "weight_decay": 0.1,
    "trust_coefficient": 0.02,
    "variant": "paper",
    "adapt": True,
}
Lists = list[list[Tensor]]


def lists(parameter: torch.dtype = F32, momentum: torch.dtype = F32, shapes: list[tuple[int, ...]] = SHAPES) -> Lists:
    """Parameters, gradients, momenta."""
    return random_lists(3, [parameter, parameter, momentum], shapes)


def step(columns: Lists, **changes: object) -> None:
    kernel.lars_step(*columns, kernel.launch_tables(), **HYPER | changes)


def agrees(columns: Lists, factor: float = 1.0, reference: dict | None = None, **changes: object) -> bool:  # type: ignore[type-arg]
    p, g, v = ([tensor.double() for tensor in tensors] for tensors in columns)
    optimizer.lars_step(
        p,
        [factor * each for each in g],
        v,
        **HYPER | (changes if reference is None else reference),  # type: ignore[arg-type]
    )
    step(columns, **changes)
    return all(near(a, b) for ours, other in ((columns[0], p), (columns[2], v)) for a, b in zip(ours, other))


@pytest.mark.parametrize(("parameter", "momentum"), [(F32, F32), (BF16, BF16), (BF16, F32)], ids=str)
@pytest.mark.parametrize("variant", ["paper", "timm", "moco", "optax"])
def test_step_is_the_formula(variant: str, parameter: torch.dtype, momentum: torch.dtype) -> None:
    assert agrees(lists(parameter, momentum), variant=variant)


@pytest.mark.parametrize("changes", [{"adapt": False}, {"weight_decay": 0.0}], ids=lambda changes: next(iter(changes)))
def test_without_decay_or_ratio(changes: dict[str, object]) -> None:
    assert agrees(lists(), **changes)


@pytest.mark.parametrize("which", [0, 1, 2, None])
def test_odd_addresses(which: int | None) -> None:
    columns = [
        misaligned(tensors) if which in (number, None) else tensors
        for number, tensors in enumerate(lists(shapes=[(BLOCK,), (BLOCK + 9,)]))
    ]
    assert agrees(columns)


def test_all_zero_tensors_have_a_ratio_of_1() -> None:
    columns = lists(shapes=[(40,), (50,), (PIECE + 3,)])
    columns[0][0].zero_()
    columns[1][1].zero_()
    assert agrees(columns, weight_decay=0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_extreme_gradients_spoil_their_own_tensor_at_most(value: float) -> None:
    columns = lists(shapes=[(PIECE + 5,), (70,)])
    columns[1][0][3] = value
    assert agrees(columns)
    assert columns[0][1].isfinite().all()


def test_clip_acts_on_norm_and_step() -> None:
    """With decay it matters to the ratio."""
    assert agrees(lists(shapes=[(40,), (PIECE + 3,)]), factor=0.0625, reference={}, clip=torch.tensor(0.0625))


def test_found_inf_leaves_everything() -> None:
    columns = lists(shapes=[(40,), (PIECE + 3,)])
    before = [[tensor.clone() for tensor in tensors] for tensors in columns]
    step(columns, found_inf=torch.tensor(1.0))
    assert all(torch.equal(a, b) for old, new in zip(before, columns) for a, b in zip(old, new))


def test_stochastic_rounding_is_unbiased() -> None:
    shape = (4 * BLOCK,)
    p = torch.ones(shape, dtype=BF16)
    step(
        [[p], [torch.ones_like(p)], [torch.zeros(shape)]],
        seed=7,
        adapt=False,
        learning_rate=2.0**-8 / 50,
        weight_decay=0.0,
    )
    share = (p != 1).double().mean().item()
    assert set(p.float().unique().tolist()) == {1.0, 1.0 - 2.0**-8}
    assert abs(share - 1 / 50) < 4 * math.sqrt(0.02 * 0.98 / shape[0])


def test_autograd_sees_that_the_parameter_changed() -> None:
    p = torch.nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    step([[p], [torch.ones(4)], [torch.zeros(4)]])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_other_dtypes_are_refused_before_anything_changed() -> None:
    good, bad = torch.ones(4), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        step([[good, bad], [good.clone(), bad.clone()], [good.clone(), bad.clone()]])
    assert torch.equal(good, torch.ones(4))
