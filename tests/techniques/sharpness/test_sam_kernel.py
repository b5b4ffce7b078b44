"""SAM's two launches up the ball and one back, under the interpreter, against the formula and torch's operators."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.kernels import gates
from techniques.sharpness.sam import technique

kernel = pytest.importorskip("techniques.sharpness.sam.kernel")  # Triton has no wheel for some platforms
portable = pytest.importorskip("suite.kernels.portable")
optimizer_parts = pytest.importorskip("suite.kernels.optimizer_parts")
BLOCK, PIECE = optimizer_parts.BLOCK, optimizer_parts.PIECE
ascend, restore, launch_tables = kernel.ascend, kernel.restore, kernel.launch_tables

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
    copies = ascend(parameters, gradients, rho, launch_tables())
    assert all(map(_close, parameters, before, expected))
    assert all(map(torch.equal, copies, before))
    restore(parameters, copies, launch_tables())
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
        (kernel, "ascend_kernel"), (kernel, "restore_kernel"), (optimizer_parts, "square_sums_kernel"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, Counted(name, getattr(module, name)))
    return names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ascent_follows_the_formula_and_restore_undoes_it(dtype: torch.dtype) -> None:
    _follows_formula(*_lists(dtype=dtype))


def test_dtypes_mix_under_one_norm() -> None:
    parameters, gradients = _lists([(5,), (BLOCK + 3,), (40,)])
    parameters[1], gradients[1] = parameters[1].bfloat16(), gradients[1].bfloat16()
    _follows_formula(parameters, gradients)


def test_any_number_of_tensors_is_two_launches_up_and_one_back(launches: list[str]) -> None:
    parameters, gradients = _lists([(size % 7,) for size in range(60)])
    _follows_formula(parameters, gradients)
    assert launches == ["square_sums_kernel", "ascend_kernel", "restore_kernel"]


def test_more_blocks_than_programs_are_all_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for parameters of more than PARTIALS blocks: each program takes several, whole ones and tails."""
    monkeypatch.setattr(optimizer_parts, "PARTIALS", 4)
    _follows_formula(*_lists([(3 * BLOCK + 1,), (7,), (BLOCK,), (2 * BLOCK,), (PIECE,), (1,)]))


def test_the_same_bits_every_time() -> None:
    ways = [_lists() for _ in range(2)]
    for parameters, gradients in ways:
        ascend(parameters, gradients, RHO, launch_tables())
    assert all(map(torch.equal, ways[0][0], ways[1][0]))


@pytest.mark.parametrize("odd", [(0,), (1,), (0, 1)])
def test_views_at_odd_addresses(odd: tuple[int, ...]) -> None:
    lists = list(_lists([(BLOCK,), (9,)]))
    for number in odd:
        lists[number] = [torch.cat([tensor[:1], tensor])[1:] for tensor in lists[number]]
        assert all(tensor.data_ptr() % 16 for tensor in lists[number])
    _follows_formula(*lists)


def test_memory_around_a_view_is_untouched() -> None:
    flat = torch.full((3 * BLOCK,), 5.0)
    view = flat[1 : BLOCK + 1]
    ascend([view], [torch.ones(BLOCK)], RHO, launch_tables())
    assert (view != 5).all() and flat[0] == 5 and (flat[BLOCK + 1 :] == 5).all()


def test_a_zero_gradient_perturbs_nothing() -> None:
    parameters, gradients = _lists()
    before = [parameter.clone() for parameter in parameters]
    ascend(parameters, [torch.zeros_like(gradient) for gradient in gradients], RHO, launch_tables())
    assert all(map(torch.equal, parameters, before))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_extreme_gradients_do_as_with_torchs_operators(value: float) -> None:
    parameters, gradients = _lists([(PIECE + 5,), (7,)])
    gradients[0][3] = value
    theirs = [nn.Parameter(parameter.clone()) for parameter in parameters]
    for parameter, gradient in zip(theirs, gradients):
        parameter.grad = gradient.clone()
    technique.ascend(theirs, RHO)
    copies = ascend(parameters, gradients, RHO, launch_tables())
    for own, their in zip(parameters, theirs):
        torch.testing.assert_close(own, their.data, equal_nan=True)
    restore(parameters, copies, launch_tables())
    assert all(map(torch.equal, parameters, _lists([(PIECE + 5,), (7,)])[0]))


@pytest.mark.parametrize("elements", [BLOCK, BLOCK - 1], ids=["whole", "tail"])
def test_elements_beyond_2_to_the_31(elements: int) -> None:
    """A block deep inside a tensor too large to allocate; only what this block may touch is there."""
    (p,), (g,) = _lists([(BLOCK,)])
    copies, before = torch.zeros(BLOCK), p.clone()
    chunk = 2**32 // BLOCK + 1
    first = chunk * BLOCK
    table = torch.tensor([[tensor.data_ptr() - 4 * first] for tensor in (p, g, copies)] + [[first + elements]])
    partials = torch.empty(1)
    optimizer_parts.square_sums_kernel[(1,)](
        table, torch.tensor([chunk]), 1, 1, partials, **kernel.MANIFESTS["ascend_float32:norm"].constants
    )
    torch.testing.assert_close(partials[0], g[:elements].square().sum())
    kernel.ascend_kernel[(1,)](
        table, torch.tensor([chunk]), 1, partials, 1, RHO, **kernel.MANIFESTS["ascend_float32"].constants
    )
    (expected,) = _formula([before[:elements]], [g[:elements]])
    assert _close(p[:elements], before[:elements], expected)
    assert torch.equal(p[elements:], before[elements:])
    assert torch.equal(copies, torch.cat([before[:elements], torch.zeros(BLOCK - elements)]))
    back = torch.stack([table[0], table[2], table[3]])
    kernel.restore_kernel[(1,)](back, torch.tensor([chunk]), 1, **kernel.MANIFESTS["restore_float32"].constants)
    assert torch.equal(p, before)


def test_nothing_to_do_launches_nothing(launches: list[str]) -> None:
    assert ascend([], [], RHO, launch_tables()) == []
    (copy,) = ascend([torch.zeros(0)], [torch.zeros(0)], RHO, launch_tables())
    restore([torch.zeros(0)], [copy], launch_tables())
    assert launches == []


def test_other_dtypes_are_refused_before_anything_changed() -> None:
    good, bad = torch.ones(4), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        ascend([good, bad], [good.clone(), bad.clone()], RHO, launch_tables())
    with pytest.raises(TypeError, match="give what ascend returned"):
        restore([good], [good.bfloat16()], launch_tables())
    assert torch.equal(good, torch.ones(4))


def test_autograd_sees_that_the_parameter_changed() -> None:
    p = nn.Parameter(torch.ones(4))
    loss = (p * p).sum()
    ascend([p], [torch.ones(4)], RHO, launch_tables())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_technique_on_a_gpu_is_the_technique_elsewhere(
    monkeypatch: pytest.MonkeyPatch, launches: list[str]
) -> None:
    """CPU tensors go the way of a GPU's; the tables of both ways stay in ``launch``."""
    parameters, gradients = _lists([(5, 3), (BLOCK + 1,)])
    ways: list[list[nn.Parameter]] = [[nn.Parameter(p.clone()) for p in parameters] for _ in range(2)]
    launch: dict[str, Any] = {}
    moved: dict[bool, list[Tensor]] = {}
    for own, taken in zip(ways, (False, True)):
        monkeypatch.setattr(technique, "launchable", lambda tensors, taken=taken: taken)
        for _ in range(2):
            for parameter, gradient in zip(own, gradients):
                parameter.grad = gradient.clone()
            copies = technique.ascend(own, 0.05, launch)
            moved[taken] = [parameter.detach().clone() for parameter in own]
            technique.restore(own, copies, launch)
            assert all(map(torch.equal, own, parameters))
    assert all(map(torch.allclose, moved[True], moved[False]))
    assert launches == ["square_sums_kernel", "ascend_kernel", "restore_kernel"] * 2
    assert launch.keys() == {"ascend", "restore"}


def test_machine_code_for_hopper_is_within_budget() -> None:
    codes = gates.machine_code(kernel.__name__)
    assert codes.keys() == kernel.MANIFESTS.keys()
    violations = {name: gates.check(code, kernel.MANIFESTS[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
