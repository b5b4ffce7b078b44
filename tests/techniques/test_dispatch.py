"""What an optimizer does on a GPU, by its kernel (here under the interpreter), is what it does elsewhere."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.kernels import optimizer as base
from suite.kernels.optimizer import GroupedOptimizer
from techniques.large_batch.lamb import optimizer as lamb
from techniques.large_batch.lars import optimizer as lars
from techniques.optimizers.acclip import optimizer as acclip
from techniques.optimizers.adamw.technique import AdamW
from techniques.optimizers.lion import technique as lion
from techniques.shared import adam, sgd

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton
adam_kernel = pytest.importorskip("techniques.shared.adam_kernel")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

Make = Callable[[list[nn.Parameter]], GroupedOptimizer]
CASES: dict[str, Make] = {
    "sgd": lambda p: sgd.SGD(p, lr=0.1, dampening=0.3, weight_decay=0.1),
    "adam": lambda p: adam.Adam(p, lr=0.01, weight_decay=0.1),
    "bert": lambda p: adam.Adam(p, lr=0.01, weight_decay=0.1, decay="decoupled", bias_correction=False),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "acclip": lambda p: acclip.ACClip(p, lr=0.1, weight_decay=0.1),
    "lion": lambda p: lion.Lion(p, lr=0.1, weight_decay=0.1),
    "lion_bf16": lambda p: lion.Lion(p, lr=0.1, weight_decay=0.1, momentum_dtype=torch.bfloat16),
    "lars": lambda p: lars.Lars(p, lr=1.0, weight_decay=0.1),
    "lamb": lambda p: lamb.Lamb(p, lr=0.1, variant="nvlamb"),
}
CASE = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


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


@CASE
def test_an_optimizer_with_the_kernel_does_what_it_does_without(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """One parameter's gradient comes late, and the state is saved and loaded on the way."""
    ends = []
    for launchable in (never, always):
        monkeypatch.setattr(base, "launchable", launchable)
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
    monkeypatch.setattr(base, "launchable", always)
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
    monkeypatch.setattr(base, "launchable", always)
    parameters = models((torch.bfloat16,) * 3)
    optimizer = AdamW(parameters)
    train(optimizer, range(2))
    loaded = AdamW(parameters)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in (optimizer, loaded):
        assert {state["second_moment"].dtype for state in each.state.values()} == {torch.float32}
        assert {float(state["step"]) for state in each.state.values()} == {2}


@pytest.mark.parametrize("make", [CASES["adam"], CASES["bert"], CASES["adamw"]], ids=["adam", "bert", "adamw"])
def test_a_state_saved_on_a_cpu_continues_on_a_gpu_and_back(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    ends = []
    for ways in ((never, never, never), (never, always, never)):
        parameters, saved = models(), None
        for part, launchable in enumerate(ways):
            monkeypatch.setattr(base, "launchable", launchable)
            optimizer = make(parameters)
            if saved is not None:
                optimizer.load_state_dict(saved)
            train(optimizer, range(2 * part, 2 * part + 2))
            saved = copy.deepcopy(optimizer.state_dict())
        ends.append(parameters)
    for a, b in zip(*ends):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


@CASE
def test_gradients_may_have_any_layout(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(base, "launchable", always)
    gradient = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    ends = []
    for each in (gradient, gradient.T.contiguous().T):
        parameter = nn.Parameter(torch.ones(20, 30))
        parameter.grad = each
        make([parameter]).step()
        ends.append(parameter.detach())
    assert torch.equal(*ends)


@CASE
def test_what_a_kernel_fuses_is_what_torch_does_beside_the_update(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """Scaled gradients that are unscaled and clipped in the update, against gradients unscaled and clipped before."""
    ends = []
    for launchable, fused in ((never, False), (never, True), (always, True)):
        monkeypatch.setattr(base, "launchable", launchable)
        parameters = models()
        optimizer = make(parameters)
        for step, scale in enumerate((1024.0, 4.0)):  # a loss scale that changes must not show in the momenta
            gradients(parameters, step, scale)
            if fused:
                optimizer.grad_scale = torch.tensor(scale)
                optimizer.clip(3.0)  # of gradients unscaled
            else:
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.grad.div_(scale)
                nn.utils.clip_grad_norm_(parameters, 3.0)
            optimizer.step()
        ends.append([parameter.detach() for parameter in parameters])
    for end in ends[1:]:
        for fused_end, plain in zip(end, ends[0]):
            torch.testing.assert_close(fused_end, plain, rtol=1e-4, atol=1e-5)


@CASE
@pytest.mark.parametrize("launchable", [never, always])
def test_a_step_that_is_not_finite_is_left_out_and_the_next_is_not(
    monkeypatch: pytest.MonkeyPatch, make: Make, launchable: Callable[[list[Tensor]], bool]
) -> None:
    monkeypatch.setattr(base, "launchable", launchable)
    parameters = models()
    optimizer = make(parameters)
    for step, bad in enumerate((False, True, False)):
        gradients(parameters, step)
        before = [parameter.detach().clone() for parameter in parameters]
        if bad:
            assert parameters[1].grad is not None
            parameters[1].grad[3, 4] = float("inf")
        optimizer.clip(1.0)
        optimizer.step()
        moved = [not torch.equal(parameter, old) for parameter, old in zip(parameters, before)]
        assert moved == [not bad] * 3
    assert all(parameter.isfinite().all() for parameter in parameters)


@CASE
@pytest.mark.parametrize("launchable", [never, always])
def test_torchs_gradient_scaler_hands_over_its_scale(
    monkeypatch: pytest.MonkeyPatch, make: Make, launchable: Callable[[list[Tensor]], bool]
) -> None:
    monkeypatch.setattr(base, "launchable", launchable)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    scaler.scale(torch.ones(()))  # begins the scale
    scaled, plain = models(), models()
    optimizer, other = make(scaled), make(plain)
    for step in range(2):
        gradients(scaled, step, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        gradients(plain, step)
        other.step()
    for a, b in zip(scaled, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    gradients(scaled, 2)
    assert scaled[0].grad is not None
    scaled[0].grad[0] = float("nan")
    before = [parameter.detach().clone() for parameter in scaled]
    scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(scaled, before))


def test_small_updates_of_bfloat16_parameters_are_not_lost_with_stochastic_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = {}
    for stochastic in (False, True):
        monkeypatch.setattr(base, "launchable", always)
        parameter = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = lion.Lion([{"params": [parameter], "stochastic_rounding": stochastic}], lr=1e-4)
        for _ in range(20):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        moved[stochastic] = 1 - parameter.detach().float().mean().item()
    assert moved[False] == 0
    assert moved[True] == pytest.approx(20e-4, rel=0.1)
    monkeypatch.setattr(base, "launchable", never)
    with pytest.raises(ValueError, match="stochastic rounding"):
        optimizer.step()


def gradients(parameters: list[nn.Parameter], step: int, scale: float = 1.0) -> None:
    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + number)
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
