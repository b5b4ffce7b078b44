"""What an optimizer does on a GPU, by its kernel (here under the interpreter), is what it does elsewhere."""

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from techniques.large_batch.lamb import technique as lamb
from techniques.large_batch.lars import technique as lars
from techniques.optimizers.acclip import technique as acclip
from techniques.optimizers.adam import technique as adam
from techniques.optimizers.adamw.technique import AdamW
from techniques.optimizers.lion import technique as lion
from techniques.optimizers.sgd_momentum import technique as sgd

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton
adam_kernel = pytest.importorskip("techniques.optimizers.adam.kernel")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
CASES: dict[str, tuple[ModuleType, Make]] = {  # with the module that asks whether to launch
    "sgd": (sgd, lambda p: sgd.SGD(p, lr=0.1, dampening=0.3, weight_decay=0.1)),
    "adam": (adam, lambda p: adam.Adam(p, lr=0.01, weight_decay=0.1)),
    "bert": (adam, lambda p: adam.Adam(p, lr=0.01, weight_decay=0.1, decay="decoupled", bias_correction=False)),
    "adamw": (adam, lambda p: AdamW(p, lr=0.01, weight_decay=0.1)),
    "acclip": (acclip, lambda p: acclip.ACClip(p, lr=0.1, weight_decay=0.1)),
    "lion": (lion, lambda p: lion.Lion(p, lr=0.1, weight_decay=0.1)),
    "lars": (lars, lambda p: lars.Lars(p, lr=1.0, weight_decay=0.1)),
    "lamb": (lamb, lambda p: lamb.Lamb(p, lr=0.1, variant="nvlamb")),
}


def train(optimizer: torch.optim.Optimizer, steps: range, without: tuple[int, ...] = ()) -> None:
    """Along gradients that are the same for the same step."""
    for step in steps:
        for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
            generator = torch.Generator().manual_seed(100 * step + number)
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = None if number in without else gradient
        optimizer.step()


def models(dtypes: tuple[torch.dtype, ...] = (torch.float32,) * 3) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = (5,), (20, 30), (7,)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(each)) for shape, each in zip(shapes, dtypes)]


def never(tensors: list[Tensor]) -> bool:
    return False


def always(tensors: list[Tensor]) -> bool:
    """CPU tensors go the way of a GPU's: float32 and bfloat16 to the kernel, others to torch."""
    return all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


@pytest.mark.parametrize(("module", "make"), CASES.values(), ids=CASES)
def test_an_optimizer_with_the_kernel_does_what_it_does_without(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, make: Make
) -> None:
    """One parameter's gradient comes late, and the state is saved and loaded on the way."""
    ends = []
    for launchable in (never, always):
        monkeypatch.setattr(module, "launchable", launchable)
        parameters = models()
        optimizer = make(parameters)
        train(optimizer, range(2), without=(1,))
        train(optimizer, range(2, 3))
        resumed = make(parameters)
        resumed.load_state_dict(optimizer.state_dict())
        train(resumed, range(3, 5))
        ends.append([parameter.detach() for parameter in parameters])
    for plain, launched in zip(*ends):
        torch.testing.assert_close(launched, plain, rtol=1e-5, atol=1e-6)


def test_one_launch_for_all_that_are_at_one_step_and_none_for_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []
    adam_step = adam_kernel.adam_step

    def counted(parameters: list[Tensor], *columns: Any, **hyper: Any) -> None:
        launches.append(len(parameters))
        adam_step(parameters, *columns, **hyper)

    monkeypatch.setattr(adam_kernel, "adam_step", counted)
    monkeypatch.setattr(adam, "launchable", always)
    dtypes = (torch.float32, torch.float32, torch.float64)
    own, other = models(dtypes), models(dtypes)
    settings: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.3}
    for optimizer in (AdamW(own, **settings), AdamW(other, **settings, fused=False)):
        train(optimizer, range(2))
        train(optimizer, range(2, 3), without=(1,))
        train(optimizer, range(3, 5))
    for a, b in zip(own, other):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)
    assert launches == [2, 2, 1, 1, 1, 1, 1]


def test_adamw_has_float32_moments_for_bfloat16_parameters_also_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam, "launchable", always)
    parameters = models((torch.bfloat16,) * 3)
    optimizer = AdamW(parameters)
    train(optimizer, range(2))
    loaded = AdamW(parameters)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in (optimizer, loaded):
        assert {state["second_moment"].dtype for state in each.state.values()} == {torch.float32}
        assert {state["step"] for state in each.state.values()} == {2}


@pytest.mark.parametrize("make", [CASES["adam"][1], CASES["bert"][1], CASES["adamw"][1]], ids=["adam", "bert", "adamw"])
def test_a_state_saved_on_a_cpu_continues_on_a_gpu_and_back(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    ends = []
    for ways in ((never, never, never), (never, always, never)):
        parameters, saved = models(), None
        for part, launchable in enumerate(ways):
            monkeypatch.setattr(adam, "launchable", launchable)
            optimizer = make(parameters)
            if saved is not None:
                optimizer.load_state_dict(saved)
            train(optimizer, range(2 * part, 2 * part + 2))
            saved = copy.deepcopy(optimizer.state_dict())
        ends.append(parameters)
    for a, b in zip(*ends):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("module", "make"), CASES.values(), ids=CASES)
def test_gradients_may_have_any_layout(monkeypatch: pytest.MonkeyPatch, module: ModuleType, make: Make) -> None:
    monkeypatch.setattr(module, "launchable", always)
    gradient = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    ends = []
    for each in (gradient, gradient.T.contiguous().T):
        parameter = nn.Parameter(torch.ones(20, 30))
        parameter.grad = each
        make([parameter]).step()
        ends.append(parameter.detach())
    assert torch.equal(*ends)
