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
    "sgd": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD),
    "nesterov": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD | {"nesterov": True, "dampening": 0.0}),
    "sgd-first": Case(sgd_kernel, "sgd_step", sgd_formula, 1, SGD | {"first": True}),
    "adam": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM, positive=True),
    "adam-decoupled": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM | {"decoupled": True}, positive=True),
    "adam-uncorrected": Case(adam_kernel, "adam_step", adam_formula, 2, ADAM | {"step": math.inf}, positive=True),
    "acclip": Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP, positive=True),
    "acclip-2": Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP | {"alpha": 2.0}, positive=True),
    "lion": Case(lion_kernel, "lion_step", lion_formula, 1, LION),
}
BETWEEN = Case(acclip_kernel, "acclip_step", acclip_formula, 2, ACCLIP | {"alpha": 1.5}, positive=True)
MAIN = {name: EXACT[name] for name in ("sgd", "adam", "acclip", "lion")}
every = pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
main = pytest.mark.parametrize("case", MAIN.values(), ids=MAIN.keys())


@every
def test_step_is_the_formula_to_the_bit(case: Case) -> None:
    assert case.equals_formula(case.lists())


@main
@pytest.mark.parametrize("state", [torch.bfloat16, torch.float32])
def test_bfloat16_is_the_formula_rounded_to_nearest(case: Case, state: torch.dtype) -> None:
    assert case.equals_formula(case.lists(SHAPES, torch.bfloat16, state, torch.bfloat16))


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
def test_views_at_odd_addresses_and_the_memory_around_them(case: Case) -> None:
    lists = case.lists([(BLOCK,), (BLOCK + 9,)])
    flat = [[torch.cat([tensor[:1], tensor, tensor[:1]]) for tensor in column] for column in lists]
    views = [[tensor[1:-1] for tensor in column] for column in flat]
    assert all(tensor.data_ptr() % 16 for column in views for tensor in column)
    before = [[(tensor[0].item(), tensor[-1].item()) for tensor in column] for column in flat]
    assert case.equals_formula(views)
    assert before == [[(tensor[0].item(), tensor[-1].item()) for tensor in column] for column in flat]


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


@main
def test_other_dtypes_are_refused_before_anything_changed(case: Case) -> None:
    lists = [[tensor.double() for tensor in column] for column in case.lists([(4,)])]
    before = lists[0][0].clone()
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        case.step(lists)
    assert torch.equal(lists[0][0], before)
