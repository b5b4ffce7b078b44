"""The two passes of LAMB under the interpreter, against the optimizer's own torch form in float64."""

import math

import pytest
import torch
from torch import Tensor

from techniques.large_batch.lamb import optimizer
from tests.techniques.large_batch.trust_lists import BLOCK, PIECE, SHAPES, misaligned, near, random_lists

kernel = pytest.importorskip("techniques.large_batch.lamb.kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
HYPER = {
    "learning_rate": 0.03,
    "beta1": 0.9,
    "beta2": 0.99,
    "eps": 1e-6,
    "weight_decay": 0.1,
    "bias_correction": True,
    "adapt": True,
    "phi": (0.0, math.inf),
}
STEP = 3
Lists = list[list[Tensor]]


def lists(parameter: torch.dtype = F32, moment: torch.dtype = F32, shapes: list[tuple[int, ...]] = SHAPES) -> Lists:
    """Parameters, gradients, first and second moments."""
    made = random_lists(4, [parameter, parameter, moment, moment], shapes)
    made[3] = [tensor.abs() for tensor in made[3]]
    return made


def expected(columns: Lists, factor: float = 1.0, **changes: object) -> Lists:
    """Parameters and moments after the step, in float64."""
    wide = [[tensor.double() for tensor in tensors] for tensors in columns]
    p, g, m, v = wide
    optimizer.lamb_step(p, [factor * each for each in g], m, v, STEP, **HYPER | changes)  # type: ignore[arg-type]
    return [p, m, v]


def step(columns: Lists, **changes: object) -> None:
    p, g, m, v = columns
    kernel.lamb_step(p, g, m, v, kernel.launch_tables(), step=STEP, **HYPER | changes)


def agrees(
    columns: Lists, factor: float = 1.0, units: float = 4, reference: dict | None = None, **changes: object
) -> bool:  # type: ignore[type-arg]
    wanted = expected(columns, factor, **(changes if reference is None else reference))
    step(columns, **changes)
    got = [columns[0], columns[2], columns[3]]
    return all(near(mine, theirs, units) for ours, other in zip(got, wanted) for mine, theirs in zip(ours, other))


@pytest.mark.parametrize(("parameter", "moment"), [(F32, F32), (BF16, F32), (BF16, BF16)], ids=str)
def test_step_is_the_formula(parameter: torch.dtype, moment: torch.dtype) -> None:
    assert agrees(lists(parameter, moment), units=4 if moment == F32 else 16)  # the direction is of stored moments


@pytest.mark.parametrize(
    "changes",
    [{"bias_correction": False}, {"adapt": False}, {"phi": (5.0, 10.0)}, {"weight_decay": 0.0}],
    ids=lambda changes: next(iter(changes)),
)
def test_variants(changes: dict[str, object]) -> None:
    assert agrees(lists(), **changes)


@pytest.mark.parametrize("which", [0, 1, 2, 3, None])
def test_odd_addresses(which: int | None) -> None:
    columns = [
        misaligned(tensors) if which in (number, None) else tensors
        for number, tensors in enumerate(lists(shapes=[(BLOCK,), (BLOCK + 9,)]))
    ]
    assert agrees(columns)


def test_a_tensor_of_many_blocks_has_one_norm() -> None:
    """More programs than the ratio's kernel reads at a time would need 2 million elements; three blocks show it."""
    columns = lists(shapes=[(3 * BLOCK + 5,), (7,)])
    before = [tensor.clone() for tensor in columns[0]]
    step(columns)
    for old, new in zip(before, columns[0]):
        assert (new - old).norm().item() == pytest.approx(HYPER["learning_rate"] * old.norm().item(), rel=1e-5)


def test_the_ratio_kernel_adds_up_any_number_of_programs() -> None:
    from techniques.large_batch.shared.trust_kernel import CHUNK, ratios_kernel

    counts = [1, CHUNK, CHUNK + 3, 2]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    total = sum(counts)
    partials = torch.rand(2 * total, generator=torch.Generator().manual_seed(1))
    ratios = torch.empty(len(counts))
    ratios_kernel[(len(counts),)](partials, starts, ratios, total, 0.5, 0.1, 20.0, 0.3, 1e-3, CHUNK=CHUNK)
    for each, first, last in zip(ratios.tolist(), starts.tolist(), starts.tolist()[1:]):
        w = partials[first:last].double().sum().sqrt().item()
        u = partials[total + first : total + last].double().sum().sqrt().item()
        assert each == pytest.approx(0.5 * min(max(w, 0.1), 20.0) / (u + 0.3 * w + 1e-3), rel=1e-5)


def test_zero_weights_and_zero_updates_have_a_ratio_of_1() -> None:
    columns = lists(shapes=[(40,), (50,), (0,), (PIECE + 3,)])
    columns[0][0].zero_()
    for tensors in columns[1:]:
        tensors[1].zero_()
    assert agrees(columns, weight_decay=0.0)


def test_without_eps_the_lanes_beyond_a_tail_do_not_count() -> None:
    assert agrees(lists(shapes=[(5,), (PIECE + 1,)]), eps=0.0, units=8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_extreme_gradients_spoil_their_own_tensor_at_most(value: float) -> None:
    columns = lists(shapes=[(PIECE + 5,), (70,)])
    columns[1][0][3] = value
    assert agrees(columns)
    assert columns[0][1].isfinite().all()


def test_clip_acts_at_no_further_pass_and_leaves_the_gradients() -> None:
    columns = lists(shapes=[(40,), (PIECE + 3,)])
    gradients = [tensor.clone() for tensor in columns[1]]
    assert agrees(columns, factor=0.0625, reference={}, clip=torch.tensor(0.0625))
    assert all(torch.equal(a, b) for a, b in zip(gradients, columns[1]))


def test_found_inf_leaves_everything() -> None:
    columns = lists(shapes=[(40,), (PIECE + 3,)])
    before = [[tensor.clone() for tensor in tensors] for tensors in columns]
    step(columns, found_inf=torch.tensor(1.0))
    assert all(torch.equal(a, b) for old, new in zip(before, columns) for a, b in zip(old, new))
    step(columns, found_inf=torch.tensor(0.0))
    assert not torch.equal(before[0][0], columns[0][0])


def test_stochastic_rounding_is_unbiased() -> None:
    """Steps of a fiftieth of a unit in the last place: rounding to nearest would lose every one."""
    shape = (4 * BLOCK,)
    parameters = torch.ones(shape, dtype=BF16)
    columns = [[parameters], [torch.ones(shape, dtype=BF16)], [torch.ones(shape)], [torch.ones(shape)]]
    rate = 2.0**-8 / 50
    step(columns, seed=7, learning_rate=rate, weight_decay=0.0, bias_correction=False)
    assert set(parameters.float().unique().tolist()) == {1.0, 1.0 - 2.0**-8}
    share = (parameters != 1).double().mean().item()
    assert abs(share - 1 / 50) < 4 * math.sqrt(0.02 * 0.98 / shape[0])


def test_many_steps_with_new_gradients_and_a_new_tensor_follow_the_formula() -> None:
    p, _, m, v = lists(shapes=[(40,), (PIECE + 3,)])
    wide = [[tensor.double() for tensor in tensors] for tensors in (p, m, v)]
    tables, generator = kernel.launch_tables(), torch.Generator().manual_seed(3)
    for number in range(1, 5):
        if number == 3:  # the list grows: its launch is another
            for mine, theirs in zip((p, m, v), wide):
                mine.append(torch.ones(BLOCK + 1))
                theirs.append(torch.ones(BLOCK + 1, dtype=torch.float64))
        g = [torch.randn(tensor.shape, generator=generator) for tensor in p]
        kernel.lamb_step(p, g, m, v, tables, step=number, **HYPER)
        optimizer.lamb_step(wide[0], [each.double() for each in g], wide[1], wide[2], number, **HYPER)  # type: ignore[arg-type]
    assert all(near(a, b, 16) for ours, other in zip((p, m, v), wide) for a, b in zip(ours, other))


def test_autograd_sees_that_the_parameter_changed() -> None:
    p = torch.nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    step([[p], [torch.ones(4)], [torch.zeros(4)], [torch.zeros(4)]])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("parameter", "second", "words"), [(torch.float64, F32, "float32 or bf"), (F32, BF16, "both")])
def test_wrong_dtypes_are_refused_before_anything_changed(
    parameter: torch.dtype, second: torch.dtype, words: str
) -> None:
    p = torch.ones(4, dtype=parameter)
    with pytest.raises(TypeError, match=words):
        step([[p], [p.clone()], [torch.ones(4)], [torch.ones(4, dtype=second)]])
    assert torch.equal(p, torch.ones_like(p))
