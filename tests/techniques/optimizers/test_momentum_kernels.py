"""The fused updates of SGD, Adam, ACClip and Lion under the interpreter: the formulas to the bit, and in float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sgd_kernel = pytest.importorskip("techniques.shared.sgd_kernel")  # not every platform has Triton
adam_kernel = pytest.importorskip("techniques.shared.adam_kernel")
acclip_kernel = pytest.importorskip("techniques.optimizers.acclip.kernel")
lion_kernel = pytest.importorskip("techniques.optimizers.lion.kernel")
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

BLOCK, PIECE = 2048, 512
SHAPES = [(), (1,), (0,), (3, 5), (PIECE - 1,), (PIECE + 1,), (BLOCK,), (2 * BLOCK + 77,), (64, 33)]
Lists = list[list[Tensor]]  # parameters, gradients, then the states


def rooted(x: Tensor) -> Tensor:
    """Square roots rounded to nearest, which torch's on a CPU are not."""
    return torch.as_tensor(np.sqrt(x.numpy()))


def sgd_formula(p: Tensor, g: Tensor, v: Tensor, hyper: dict[str, Any]) -> tuple[Tensor, ...]:
    g = g + p * hyper["weight_decay"]
    v = v * hyper["momentum"] + g * (1 if hyper["first"] else 1 - hyper["dampening"])
    return p - (g + v * hyper["momentum"] if hyper["nesterov"] else v) * hyper["lr"], v


def adam_formula(p: Tensor, g: Tensor, m: Tensor, v: Tensor, hyper: dict[str, Any]) -> tuple[Tensor, ...]:
    decay, t = hyper["weight_decay"], hyper["step"]
    if not hyper["decoupled"]:
        g = g + p * decay
    m = m * hyper["beta1"] + g * (1 - hyper["beta1"])
    v = v * hyper["beta2"] + (g * g) * (1 - hyper["beta2"])
    deviation = rooted(v) * (1 / math.sqrt(1 - hyper["beta2"] ** t)) + hyper["eps"]
    kept = p * (1 - hyper["lr"] * decay if hyper["decoupled"] else 1)
    return kept - m / deviation * (hyper["lr"] / (1 - hyper["beta1"] ** t)), m, v


def acclip_formula(p: Tensor, g: Tensor, m: Tensor, power: Tensor, hyper: dict[str, Any]) -> tuple[Tensor, ...]:
    m = m * hyper["beta1"] + g * (1 - hyper["beta1"])
    power = power * hyper["beta2"] + g.abs().pow(hyper["alpha"]) * (1 - hyper["beta2"])
    root = {1: lambda x: x, 2: rooted}.get(hyper["alpha"], lambda x: x.pow(1 / hyper["alpha"]))(power)
    share = (root / (m.abs() + hyper["eps"])).clamp(max=1)
    return p * (1 - hyper["lr"] * hyper["weight_decay"]) - share * m * hyper["lr"], m, power


def lion_formula(p: Tensor, g: Tensor, m: Tensor, hyper: dict[str, Any]) -> tuple[Tensor, ...]:
    direction = (m * hyper["beta1"] + g * (1 - hyper["beta1"])).sign()
    m = m * hyper["beta2"] + g * (1 - hyper["beta2"])
    return p * (1 - hyper["lr"] * hyper["weight_decay"]) - direction * hyper["lr"], m


@dataclass(frozen=True)
class Case:
    """One kernel with its hyper-parameters; ``positive``: the last state is never negative."""

    kernel: ModuleType
    name: str
    formula: Callable[..., tuple[Tensor, ...]]
    states: int
    hyper: dict[str, Any]
    positive: bool = False

    def step(self, lists: Lists, tables: Any = None, **more: Any) -> None:
        getattr(self.kernel, self.name)(*lists, tables or self.kernel.launch_tables(), **self.hyper, **more)

    def lists(self, shapes: list[tuple[int, ...]] = SHAPES, *dtypes: torch.dtype) -> Lists:
        """Of the dtypes of parameters, states and gradients; float32 where none are given."""
        parameter, state, gradient = dtypes or (torch.float32,) * 3
        generator = torch.Generator().manual_seed(0)
        made = [
            [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
            for dtype in (parameter, gradient, *[state] * self.states)
        ]
        if self.positive:
            made[-1] = [tensor.abs() for tensor in made[-1]]
        return made

    def expected(self, lists: Lists, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, ...]]:
        """What the formula in ``dtype`` makes of parameter and states, column by column, in their own dtypes."""
        found = []
        for column in zip(*lists):
            new = self.formula(*(tensor.to(dtype) for tensor in column), self.hyper)
            kept = (column[0], *column[2:])
            found.append(tuple(n.to(dtype if dtype == torch.float64 else old.dtype) for n, old in zip(new, kept)))
        return found

    def equals_formula(self, lists: Lists, **more: Any) -> bool:
        expected = self.expected(lists)
        self.step(lists, **more)
        got = [(column[0], *column[2:]) for column in zip(*lists)]
        return all(
            a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
            for ours, theirs in zip(got, expected)
            for a, b in zip(ours, theirs)
        )


SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.3, "nesterov": False, "first": False}
ADAM = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.3, "decoupled": False, "step": 7.0}
ACCLIP = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-5, "alpha": 1.0, "weight_decay": 0.3}
LION = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.3}
EXACT = {
    "sgd_momentum": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD),
    "nesterov_agd": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD | {"nesterov": True, "dampening": 0.0}),
    "sgd_momentum-first": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD | {"first": True}),
    "adam": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM, positive=True),
    "adamw": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM | {"decoupled": True}, positive=True),
    "adam-uncorrected": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM | {"step": math.inf}, positive=True),
    "acclip": Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP, positive=True),
    "acclip-2": Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP | {"alpha": 2.0}, positive=True),
    "lion": Case(lion_kernel, "lion_step", lion_formula, 1, LION),
}
BETWEEN = Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP | {"alpha": 1.5}, positive=True)
MAIN = {name: EXACT[name] for name in ("sgd_momentum", "adamw", "acclip", "lion")}
every = pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
main = pytest.mark.parametrize("case", MAIN.values(), ids=MAIN.keys())


@every
def test_step_is_the_formula_to_the_bit(case: Case) -> None:
    assert case.equals_formula(case.lists())


@main
@pytest.mark.parametrize("state", [torch.bfloat16, torch.float32])
def test_bfloat16_is_the_formula_rounded_to_nearest(case: Case, state: torch.dtype) -> None:
    assert case.equals_formula(case.lists(SHAPES, torch.bfloat16, state, torch.bfloat16))


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32, torch.bfloat16), (torch.bfloat16,) * 2 + (torch.float32,)]
)
def test_lions_gradients_may_have_another_dtype_than_its_parameters(dtypes: tuple[torch.dtype, ...]) -> None:
    assert EXACT["lion"].equals_formula(EXACT["lion"].lists(SHAPES, *dtypes))


@pytest.mark.parametrize("case", [*EXACT.values(), BETWEEN], ids=[*EXACT, "acclip-1.5"])
def test_float64(case: Case) -> None:
    lists = case.lists()
    expected = case.expected(lists, torch.float64)
    case.step(lists)
    for column, theirs in zip(zip(*lists), expected):
        for ours, wanted in zip((column[0], *column[2:]), theirs):
            torch.testing.assert_close(ours.double(), wanted, rtol=3e-6, atol=1e-6)


@main
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38, 1e-45])
def test_extreme_gradients_stay_where_they_are(case: Case, value: float) -> None:
    lists = case.lists([(PIECE + 5,), (7,)])
    lists[1][0][3] = lists[1][1][6] = value
    assert case.equals_formula(lists)
    others = torch.ones(PIECE + 5, dtype=torch.bool)
    others[3] = False
    assert all(column[0][others].isfinite().all() for column in lists)


@pytest.mark.parametrize("case", [*MAIN.values(), BETWEEN], ids=[*MAIN, "acclip-1.5"])
def test_zeros_stay_zeros(case: Case) -> None:
    lists = [[torch.zeros(PIECE + 3)] for _ in case.lists()]
    case.step(lists)
    assert not any(column[0].any() for column in lists)


@main
@pytest.mark.parametrize("odd", ["parameters", "gradients", "states", "all", "all-bfloat16"])
def test_views_at_odd_addresses_and_the_memory_around_them(case: Case, odd: str) -> None:
    dtype = torch.bfloat16 if odd == "all-bfloat16" else torch.float32
    views, flat = [], []
    for name, column in zip(
        ("parameters", "gradients", *["states"] * case.states), case.lists([(BLOCK,), (9,)], *[dtype] * 3)
    ):
        if odd.startswith(("all", name)):
            flat += (wide := [torch.cat([tensor[:1], tensor, tensor[:1]]) for tensor in column])
            column = [tensor[1:-1] for tensor in wide]
            assert all(tensor.data_ptr() % 16 for tensor in column)
        views.append(column)
    before = [(tensor[0].item(), tensor[-1].item()) for tensor in flat]
    assert case.equals_formula(views)
    assert before == [(tensor[0].item(), tensor[-1].item()) for tensor in flat]


@main
def test_scaled_gradients_and_steps_left_out(case: Case) -> None:
    scaled, plain = case.lists(), case.lists()
    given = [gradient * 8 for gradient in scaled[1]]
    scaled[1] = [gradient.clone() for gradient in given]
    scalars = {"clip": torch.tensor(4 / 32), "found_inf": torch.tensor(0.0)}
    case.step(scaled, **scalars)
    case.step(plain)
    assert all(map(torch.equal, scaled[1], given))
    plain[1] = given
    assert all(torch.equal(a, b) for ours, theirs in zip(scaled, plain) for a, b in zip(ours, theirs))
    kept, untouched = case.lists(), case.lists()
    case.step(kept, found_inf=torch.tensor(1.0))
    assert all(torch.equal(a, b) for ours, theirs in zip(kept, untouched) for a, b in zip(ours, theirs))


@main
def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_on_average(case: Case) -> None:
    lists = case.lists([(4 * BLOCK,)], torch.bfloat16, torch.float32, torch.bfloat16)
    for column in lists:
        column[0].fill_(column[0][5].item())
    exact = case.expected([[tensor.float() for tensor in column] for column in lists])[0][0][0].item()
    case.step(lists, seed=11)
    got = lists[0][0].double()
    spacing = 2.0 ** (math.floor(math.log2(abs(exact))) - 7)
    assert ((got - exact).abs() < spacing).all()
    assert abs(got.mean().item() - exact) < 4 * spacing / math.sqrt(len(got))


def test_stochastic_rounding_draws_anew_for_each_seed_tensor_and_element() -> None:
    def rounded(seed: int, tensors: int = 1) -> list[Tensor]:
        parameters = [torch.full((8 * BLOCK,), 1.1, dtype=torch.bfloat16) for _ in range(tensors)]
        gradients = [torch.zeros_like(each) for each in parameters]
        moments = ([torch.zeros(8 * BLOCK) for _ in parameters] for _ in range(2))
        EXACT["adamw"].step([parameters, gradients, *moments], seed=seed)
        return parameters

    (first,), (again,), (other,), pair = rounded(1), rounded(1), rounded(2), rounded(1, tensors=2)
    assert torch.equal(first, again) and torch.equal(pair[0], first)
    for a, b in ((first, other), (first, pair[1]), (first[:-1], first[1:]), (first[:BLOCK], first[BLOCK : 2 * BLOCK])):
        a, b = (each.double() - each.double().mean() for each in (a, b))
        assert abs((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt()) < 4 / math.sqrt(a.numel())


def test_what_is_exact_is_not_rounded_away() -> None:
    """NaN, infinities and numbers without a fraction stay whatever the bits drawn, and all float32 parameters."""
    case = Case(adam_kernel, "adam_step", adam_formula, 2, ADAM | {"decoupled": True, "weight_decay": 0.0})
    p = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5] * 300, dtype=torch.bfloat16)
    assert case.equals_formula([[p], [torch.zeros_like(p)], [torch.zeros(1800)], [torch.zeros(1800)]], seed=5)
    assert EXACT["adamw"].equals_formula(EXACT["adamw"].lists([(300,)]), seed=3)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_moments_do_not_see_a_parameter_whose_decay_is_decoupled(value: float) -> None:
    """Not even as 0 times an infinity."""
    lists = EXACT["adamw"].lists([(PIECE + 5,)])
    lists[0][0][3] = value
    assert EXACT["adamw"].equals_formula(lists)
    assert lists[2][0].isfinite().all() and lists[3][0].isfinite().all()


def test_lions_sign_at_cancellation_is_that_of_the_formula_as_written() -> None:
    """(m - g) beta1 + g, equal on paper, has another sign at exact cancellation."""
    m = torch.randn(BLOCK, generator=torch.Generator().manual_seed(2))
    g = -(m * LION["beta1"]) / (1 - LION["beta1"])
    beta1 = torch.tensor(LION["beta1"])
    assert (((m - g) * beta1 + g).sign() != (m * beta1 + g * (1 - LION["beta1"])).sign()).any()
    assert EXACT["lion"].equals_formula([[torch.zeros(BLOCK)], [g], [m]])


@main
def test_any_number_of_tensors_of_one_dtype_is_one_launch(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[int] = []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid[0])
            return kernel[grid]

    name = case.name.replace("_step", "_kernel")
    kernel = getattr(case.kernel, name)
    monkeypatch.setattr(case.kernel, name, Counted())
    case.step([[] for _ in case.lists()])
    case.step(case.lists([(0,)]))
    assert grids == []
    assert case.equals_formula(case.lists([(size % 7,) for size in range(60)]))
    assert grids == [sum(size % 7 > 0 for size in range(60))]
    lists = case.lists([(5,)] * 4)
    lists[:2] = ([*each[:2], *(tensor.bfloat16() for tensor in each[2:])] for each in lists[:2])
    assert case.equals_formula(lists)
    assert grids[1:] == [2, 2]


@main
def test_autograd_sees_that_the_parameter_changed(case: Case) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    loss = (parameter * parameter).sum()
    case.step([[parameter], *case.lists([(4,)])[1:]])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("scalar", [torch.ones(2), torch.tensor(1), torch.ones((), device="meta")])
def test_a_scalar_that_the_kernel_would_misread_is_refused(scalar: Tensor) -> None:
    with pytest.raises(ValueError, match="give one float32"):
        EXACT["adamw"].step(EXACT["adamw"].lists([(5,)]), clip=scalar)


def test_moments_of_two_dtypes_are_refused() -> None:
    good = torch.ones(4)
    with pytest.raises(TypeError, match="give both one dtype"):
        EXACT["adamw"].step([[good], [good.clone()], [good.clone()], [good.bfloat16()]])
    assert torch.equal(good, torch.ones(4))


@main
def test_other_dtypes_are_refused_before_anything_changed(case: Case) -> None:
    lists = [[tensor, tensor.double()] for (tensor,) in case.lists([(4,)])]
    before = lists[0][0].clone()
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        case.step(lists)
    assert torch.equal(lists[0][0], before)
