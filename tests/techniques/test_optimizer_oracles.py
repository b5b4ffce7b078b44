"""Each optimizer against its paper's formula in float64, update by update, by torch's operators and by its kernel.

Every update begins from the state that the optimizer really has, so that errors do not add up and the tolerance is a
count of roundings: an element is the result of at most ``ROUNDINGS`` operations, each off by half a unit in the last
place of values no larger than the largest that take part in its tensor. Norms add one for each element. A parameter
below float32 is computed in float32 and rounded once more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leantrain import optim
from suite.kernels import optimizer as base
from suite.kernels.optimizer import GroupedOptimizer

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

ROUNDINGS = 16  # of the longest chain: Adam's direction from its moments, with coupled decay and the step
STEPS = 4
State = dict[str, Tensor]


def adam(p: Tensor, g: Tensor, s: State, t: int, decoupled: bool = False) -> tuple[Tensor, State]:
    lr, decay = 0.05, 0.1
    g = g if decoupled else g + decay * p
    m = 0.9 * s["first_moment"] + 0.1 * g
    v = 0.999 * s["second_moment"] + (1 - 0.999) * g**2
    direction = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return p * (1 - lr * decay * decoupled) - lr * direction, {"first_moment": m, "second_moment": v}


def adamw(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    return adam(p, g, s, t, decoupled=True)


def sgd(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    g = g + 0.1 * p
    v = g if t == 1 else 0.9 * s["velocity"] + (1 - 0.3) * g
    return p - 0.05 * v, {"velocity": v}


def nesterov(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    v = 0.9 * s["velocity"] + g
    return p - 0.05 * (g + 0.9 * v), {"velocity": v}


def lion(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    m = s["momentum"]
    step = (0.9 * m + 0.1 * g).sign()
    return p * (1 - 0.05 * 0.1) - 0.05 * step, {"momentum": 0.99 * m + 0.01 * g}


def acclip(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    m, power = 0.9 * s["momentum"] + 0.1 * g, 0.99 * s["power"] + 0.01 * g.abs()
    share = (power / (m.abs() + 1e-5)).clamp(max=1)
    return p * (1 - 0.05 * 0.1) - 0.05 * share * m, {"momentum": m, "power": power}


def lars(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    decay, ratio = (0.1, 0.02 * p.norm() / (g.norm() + 0.1 * p.norm())) if p.ndim > 1 else (0.0, 1.0)
    v = 0.9 * s["momentum"] + 0.5 * ratio * (g + decay * p)
    return p - v, {"momentum": v}


def lamb(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    m, v = 0.9 * s["first_moment"] + 0.1 * g, 0.999 * s["second_moment"] + (1 - 0.999) * g**2
    u = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-6)
    u = u + 0.1 * p if p.ndim > 1 else u
    ratio = p.norm() / u.norm() if p.ndim > 1 else 1.0
    return p - 0.05 * ratio * u, {"first_moment": m, "second_moment": v}


def trust(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    m = 0.9 * s["first_moment"] + 0.1 * g
    u = m + 0.1 * p if p.ndim > 1 else m
    return p - 0.05 * (p.norm() / u.norm() if p.ndim > 1 else 1.0) * u, {"first_moment": m}


def agd(p: Tensor, g: Tensor, s: State, t: int) -> tuple[Tensor, State]:
    before = p if t == 1 else s["iterate"]
    times = [1.0]
    for _ in range(t):
        times.append((1 + math.sqrt(1 + 4 * times[-1] ** 2)) / 2)
    x = p - 0.05 * g
    return x + (times[-2] - 1) / times[-1] * (x - before), {"iterate": x}


Formula = Callable[[Tensor, Tensor, State, int], tuple[Tensor, State]]
CASES: dict[str, tuple[Callable[[Any], GroupedOptimizer], Formula]] = {
    "adam": (lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1), adam),
    "unfused_adam": (lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1, fused=False), adam),
    "foreach_adam": (lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1, foreach=True), adam),
    "adamw": (lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.1), adamw),
    "sgd": (lambda p: optim.SGD(p, lr=0.05, dampening=0.3, weight_decay=0.1), sgd),
    "unfused_sgd": (lambda p: optim.SGD(p, lr=0.05, dampening=0.3, weight_decay=0.1, fused=False), sgd),
    "nesterov": (lambda p: optim.SGD(p, lr=0.05, nesterov=True), nesterov),
    "lion": (lambda p: optim.Lion(p, lr=0.05, weight_decay=0.1), lion),
    "acclip": (lambda p: optim.ACClip(p, lr=0.05, weight_decay=0.1), acclip),
    "lars": (lambda p: optim.Lars(p, lr=0.5, weight_decay=0.1, trust_coefficient=0.02), lars),
    "lamb": (lambda p: optim.Lamb(p, lr=0.05, weight_decay=0.1), lamb),
    "trust": (lambda p: optim.LayerwiseTrust(p, lr=0.05, weight_decay=0.1), trust),
    "agd": (lambda p: optim.AGD(p, lr=0.05), agd),
}


WITH_KERNEL = ("adam", "adamw", "sgd", "nesterov", "lion", "acclip", "lars", "lamb")


def never(tensors: list[Tensor]) -> bool:
    return False


def always(tensors: list[Tensor]) -> bool:
    """CPU tensors go the way of a GPU's: float32 and bfloat16 to the kernel, others to torch."""
    return all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


def unit(dtype: torch.dtype) -> float:
    """What one rounding is off by at most, relatively."""
    return torch.finfo(dtype).eps / 2


@pytest.mark.parametrize(
    ("name", "dtype", "launchable"),
    [
        *((name, dtype, never) for name in CASES for dtype in (torch.float64, torch.float32, torch.bfloat16)),
        *((name, dtype, always) for name in WITH_KERNEL for dtype in (torch.float32, torch.bfloat16)),
    ],
)
def test_update_by_update_across_save_and_load(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, launchable: Callable[[list[Tensor]], bool]
) -> None:
    monkeypatch.setattr(base, "launchable", launchable)
    make, formula = CASES[name]
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((5,), (6, 9))]
    optimizer, wide = make(parameters), torch.promote_types(dtype, torch.float32)
    for t in range(1, STEPS + 1):
        before = []
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
            own = {
                n: each.to(torch.float64, copy=True)
                for n, each in optimizer.state[parameter].items()
                if isinstance(each, Tensor)
            }
            zero = torch.zeros_like(parameter, dtype=torch.float64)
            state = {n: own.get(n, zero) for n in formula(zero + 1, zero + 1, _anything(zero), 1)[1]}
            before.append((parameter.detach().to(torch.float64, copy=True), parameter.grad.double(), state))
        if t == 3:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make(parameters)
            optimizer.load_state_dict(saved)
        optimizer.step()
        for parameter, (p, g, state) in zip(parameters, before, strict=True):
            expected, states = formula(p, g, state, t)
            largest = max(each.abs().max().item() for each in (p, g, expected, *states.values()))
            roundings = ROUNDINGS + (parameter.numel() if name in ("lars", "lamb", "trust") else 0)
            error = roundings * unit(wide) * largest
            last = unit(dtype) * expected.abs() if dtype != wide else torch.zeros_like(expected)
            assert ((parameter.double() - expected).abs() <= last * (1 + 1e-4) + error).all()
            for each, value in states.items():
                assert optimizer.state[parameter][each].dtype == wide
                assert ((optimizer.state[parameter][each].double() - value).abs() <= error).all(), each


def _anything(tensor: Tensor) -> State:
    names = ("first_moment", "second_moment", "velocity", "momentum", "power", "iterate")
    return dict.fromkeys(names, tensor)
