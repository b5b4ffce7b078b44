"""The contract of our optimizers, of each by torch's operators and by its kernel (here under the interpreter)."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leantrain import optim
from suite.kernels import optimizer as base
from suite.kernels.optimizer import GroupedOptimizer
from techniques.optimizers.lion.technique import Lion

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")


def never(tensors: list[Tensor]) -> bool:
    return False


def always(tensors: list[Tensor]) -> bool:
    """CPU tensors go the way of a GPU's: float32 and bfloat16 to the kernel, others to torch."""
    return all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


Make = Callable[..., GroupedOptimizer]
WITH_KERNEL: dict[str, Make] = {
    "sgd": lambda p, **own: optim.SGD(p, **{"lr": 0.1, "dampening": 0.3, "weight_decay": 0.1} | own),
    "adamw": lambda p, **own: optim.AdamW(p, **{"lr": 0.01, "weight_decay": 0.1} | own),
    "acclip": lambda p, **own: optim.ACClip(p, **{"lr": 0.1, "weight_decay": 0.1} | own),
    "lion": lambda p, **own: optim.Lion(p, **{"lr": 0.1, "weight_decay": 0.1} | own),
    "lars": lambda p, **own: optim.Lars(p, **{"lr": 1.0, "weight_decay": 0.1} | own),
    "nvlamb": lambda p, **own: optim.Lamb(p, **{"lr": 0.1, "variant": "nvlamb"} | own),
}
"""One of each kernel."""
UNCORRECTED = {"lr": 0.01, "decay": "decoupled", "bias_correction": False}  # as BERT's
KERNELS_OF_OTHERS: dict[str, Make] = {
    "adam": lambda p, **own: optim.Adam(p, **{"lr": 0.01, "weight_decay": 0.1} | own),
    "bert": lambda p, **own: optim.Adam(p, **UNCORRECTED | own),
    "lamb": lambda p, **own: optim.Lamb(p, **{"lr": 0.1} | own),
}
BY_TORCH: dict[str, Make] = {
    "unfused_adamw": lambda p, **own: optim.AdamW(p, **{"lr": 0.01, "fused": False} | own),
    "unfused_sgd": lambda p, **own: optim.SGD(p, **{"lr": 0.1, "fused": False, "dampening": 0.3} | own),
    "inside_sgd": lambda p, **own: optim.SGD(p, **{"lr": 0.1, "rate": "inside"} | own),
    "agd": lambda p, **own: optim.AGD(p, **{"lr": 0.1} | own),
    "trust": lambda p, **own: optim.LayerwiseTrust(p, **{"lr": 0.1} | own),
    "adam_trust": lambda p, **own: optim.LayerwiseTrust(p, **{"lr": 0.1, "base": "adam"} | own),
    "sign_trust": lambda p, **own: optim.LayerwiseTrust(p, **{"lr": 0.1, "base": "sign"} | own),
}
LAUNCHED = WITH_KERNEL | KERNELS_OF_OTHERS
ALL = LAUNCHED | BY_TORCH
WAYS = [
    *(pytest.param(make, never, id=f"{name}-torch") for name, make in ALL.items()),
    *(pytest.param(make, always, id=f"{name}-kernel") for name, make in LAUNCHED.items()),
]
EVERY = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
EVERY_WAY = pytest.mark.parametrize(("make", "way"), WAYS, indirect=["way"])
KERNELS = pytest.mark.parametrize("make", WITH_KERNEL.values(), ids=WITH_KERNEL)
SHAPES = (5,), (6, 9), (7,)


@pytest.fixture(params=[never, always], ids=["torch", "kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(base, "launchable", request.param)
    return str(request.param.__name__)


def models(*dtypes: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    kinds = dtypes or (torch.float32,) * 3
    return [nn.Parameter(torch.randn(shape, generator=generator).to(each)) for shape, each in zip(SHAPES, kinds)]


def gradients(parameters: list[nn.Parameter], step: int, scale: float = 1.0) -> None:
    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + number)
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)


def train(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        gradients(parameters, step)
        optimizer.step()


def equal(one: list[nn.Parameter], other: list[nn.Parameter]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]


# 1: state -------------------------------------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_state_is_float32_and_the_update_is_rounded_once(way: str, make: Make, dtype: torch.dtype) -> None:
    """One step of rounded weights is the float32 step of them, rounded."""
    low = models(*(dtype,) * 3)
    wide = [nn.Parameter(each.detach().float()) for each in low]
    for step in range(3):
        gradients(low, step)
        for a, b in zip(wide, low):
            a.grad = b.grad.float()  # type: ignore[union-attr]
            a.data.copy_(b)  # the weights that the gradient is of; the state goes on in float32
        if not step:
            ours, theirs = make(low), make(wide)
        ours.step(), theirs.step()
        assert {each.dtype for each in tensors(ours)} == {torch.float32}
        units = torch.finfo(dtype).eps
        for a, b in zip(low, wide):
            torch.testing.assert_close(a, b.to(dtype), rtol=units, atol=1e-5)
        for a, b in zip(tensors(ours), tensors(theirs)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_lions_momentum_dtype_is_not_rounded_through_the_parameters(way: str) -> None:
    parameter = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))
    optimizer = Lion([parameter], lr=1e-3, momentum_dtype=torch.float32)
    expected = torch.zeros(64)
    for step in range(5):
        gradients([parameter], step)
        expected = 0.99 * expected + (1 - 0.99) * parameter.grad.float()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    momentum = optimizer.state[parameter]["momentum"]
    torch.testing.assert_close(momentum, expected, rtol=1e-5, atol=1e-7)
    assert not torch.equal(momentum, momentum.bfloat16().float())


# 2: checkpoints -------------------------------------------------------------------------------------------------------


def saved_and_loaded(
    optimizer: GroupedOptimizer, parameters: list[nn.Parameter], make: Make
) -> tuple[GroupedOptimizer, list[nn.Parameter]]:
    copies = copy.deepcopy(parameters)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = make(copies)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other, copies


@EVERY_WAY
def test_a_state_is_restored_to_the_bit(way: str, make: Make) -> None:
    """By torch.save, by deepcopy and by pickle."""
    parameters = models(torch.bfloat16, torch.bfloat16, torch.float32)
    optimizer = make(parameters)
    train(optimizer, parameters, range(2))
    restored = {
        "torch.save": saved_and_loaded(optimizer, parameters, make),
        "deepcopy": copy.deepcopy((optimizer, parameters)),
        "pickle": pickle.loads(pickle.dumps((optimizer, parameters))),  # noqa: S301 (our own)
    }
    train(optimizer, parameters, range(2, 4))
    for by, (other, copies) in restored.items():
        train(other, copies, range(2, 4))
        assert equal(parameters, copies), by
        assert all(torch.equal(a, b) for a, b in zip(tensors(optimizer), tensors(other), strict=True)), by


@pytest.mark.parametrize("name", ["adam", "bert", "adamw"])
def test_a_state_saved_on_a_cpu_continues_on_a_gpu_and_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ends = []
    for ways in ((never, never, never), (never, always, never)):
        parameters, saved = models(), None
        for part, launchable in enumerate(ways):
            monkeypatch.setattr(base, "launchable", launchable)
            optimizer = ALL[name](parameters)
            if saved is not None:
                optimizer.load_state_dict(saved)
            train(optimizer, parameters, range(2 * part, 2 * part + 2))
            saved = copy.deepcopy(optimizer.state_dict())
        ends.append(parameters)
    for a, b in zip(*ends):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


def test_a_loaded_counter_is_not_shared_with_the_optimizer_that_it_is_from(way: str) -> None:
    parameters = models()
    optimizer = optim.AdamW(parameters)
    train(optimizer, parameters, range(2))
    other = optim.AdamW(parameters)
    other.load_state_dict(optimizer.state_dict())
    train(other, parameters, range(2, 4))
    assert {float(state["step"]) for state in optimizer.state.values()} == {2}


@pytest.mark.parametrize(
    ("theirs", "ours", "hyper"),
    [
        (torch.optim.AdamW, optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.Adam, optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
        (torch.optim.SGD, optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ],
)
@pytest.mark.parametrize("steps", [0, 3])
def test_torchs_own_checkpoints_load(way: str, theirs: Any, ours: Any, hyper: dict[str, Any], steps: int) -> None:
    parameters = models()
    optimizer = theirs(parameters, **hyper)
    train(optimizer, parameters, range(steps))
    copies = copy.deepcopy(parameters)
    other = ours(copies, lr=1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, parameters, range(3, 6))
    train(other, copies, range(3, 6))
    for a, b in zip(parameters, copies):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_amsgrads_checkpoint_is_refused() -> None:
    saved = torch.optim.Adam(models(), amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="AMSGrad"):
        optim.Adam(models()).load_state_dict(saved)


@EVERY
def test_an_older_checkpoint_takes_the_default_of_a_key_that_it_lacks(make: Make) -> None:
    parameters = models()
    optimizer = make(parameters)
    train(optimizer, parameters, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    removed = {"maximize", "capturable", "foreach", "variant", "always_adapt", "bias_correction", "granularity"}
    for group in saved["param_groups"]:
        for name in removed & group.keys():
            if group[name] == optimizer.defaults[name]:
                del group[name]
    other = make(parameters)
    other.load_state_dict(saved)
    train(other, parameters, range(2, 4))
    assert removed & other.defaults.keys() <= other.param_groups[0].keys()


def test_adams_older_checkpoints_count_in_numbers() -> None:
    parameters = models()
    optimizer = optim.AdamW(parameters)
    train(optimizer, parameters, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = float(state["step"])
    copies = copy.deepcopy(parameters)
    other = optim.AdamW(copies)
    other.load_state_dict(saved)
    train(optimizer, parameters, range(3, 5))
    train(other, copies, range(3, 5))
    assert equal(parameters, copies)


# 6: clipping, closures, refusals --------------------------------------------------------------------------------------


@KERNELS
@pytest.mark.parametrize("unscaled", [False, True])
def test_clipping_is_of_unscaled_gradients_whoever_unscales_them(way: str, make: Make, unscaled: bool) -> None:
    plain, scaled = models(), models()
    ours, theirs = make(scaled), make(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    scaler.scale(torch.ones(()))  # begins the scale
    for step in range(3):
        gradients(plain, step)
        nn.utils.clip_grad_norm_(plain, 3.0)
        theirs.step()
        gradients(scaled, step, scaler.get_scale())
        if unscaled:
            scaler.unscale_(ours)
        ours.clip(3.0)
        scaler.step(ours)
        scaler.update()
    for a, b in zip(scaled, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_norm_is_float32_where_gradients_are_float16(way: str) -> None:
    """Its square root of a sum of squares is beyond float16, and the step would be left out."""
    parameter = nn.Parameter(torch.zeros(10_000, dtype=torch.float16))
    optimizer = optim.SGD([parameter], lr=1.0, momentum=0.0)
    parameter.grad = torch.full_like(parameter, 1000.0)
    assert optimizer.clip(1.0).item() == pytest.approx(1e5, rel=1e-4)
    optimizer.step()
    assert parameter.detach().float().norm().item() == pytest.approx(1.0, rel=1e-2)


def test_a_clip_is_forgotten_with_its_gradients() -> None:
    parameters = models()
    optimizer = optim.SGD(parameters, lr=1.0, momentum=0.0)
    gradients(parameters, 0)
    optimizer.clip(1e-6)
    optimizer.zero_grad()
    before = [each.detach().clone() for each in parameters]
    gradients(parameters, 1)
    optimizer.step()
    assert (before[1] - parameters[1]).norm() > 1
    for bad in (math.nan, -1.0):
        with pytest.raises(ValueError, match="largest norm"):
            optimizer.clip(bad)


@EVERY
def test_a_closure_that_raises_leaves_everything_as_it_was(make: Make) -> None:
    parameters = models()
    optimizer = make(parameters)
    train(optimizer, parameters, range(2))
    before, state = copy.deepcopy(parameters), copy.deepcopy(optimizer.state_dict())

    def closure() -> float:
        gradients(parameters, 5)
        optimizer.clip(1e-9)
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(closure)
    assert equal(parameters, before)
    copies = copy.deepcopy(parameters)
    other = make(copies)
    other.load_state_dict(state)
    train(optimizer, parameters, range(2, 3))
    train(other, copies, range(2, 3))
    assert equal(parameters, copies)


@pytest.mark.parametrize("raises_at", [1, 2])
def test_apgnc_comes_back_from_the_extrapolated_point(raises_at: int) -> None:
    parameter = nn.Parameter(torch.linspace(-1, 1, 8))
    optimizer = optim.APGnc([parameter], lr=0.1)
    calls = 0

    def closure() -> Tensor:
        return (parameter - 3).square().sum()

    for _ in range(3):
        optimizer.step(closure)
    before = parameter.detach().clone()

    def failing() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == raises_at:
            raise RuntimeError("out of data")
        return closure()

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(failing)
    assert torch.equal(parameter, before)
    copies = copy.deepcopy((optimizer, parameter))
    assert not copies[0].extrapolated
    copies[0].step(lambda: (copies[1] - 3).square().sum())


@pytest.mark.parametrize("make", [*ALL.values(), lambda p, **own: optim.APGnc(p, **{"lr": 0.1} | own)])
def test_what_makes_no_sense_is_refused_with_a_sentence(make: Make) -> None:
    for rate in (math.nan, math.inf, -0.1, torch.tensor(math.nan)):
        with pytest.raises(ValueError, match=r"lr.*>= 0"):
            make(models(), lr=rate)
        with pytest.raises(ValueError, match=r"lr.*>= 0"):
            make([{"params": models(), "lr": rate}], lr=0.1)
    with pytest.raises(TypeError, match="view_as_real"):
        make([nn.Parameter(torch.zeros(3, dtype=torch.complex64))])
    parameters = models()
    optimizer = make(parameters)
    gradients(parameters, 0)
    parameters[1].grad = parameters[1].grad.to_sparse()  # type: ignore[union-attr]
    before = copy.deepcopy(parameters)
    with pytest.raises(TypeError, match="make it dense"):
        optimizer.step()
    assert equal(parameters, before)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (optim.Lars, {"variant": "papr"}),
        (optim.Lamb, {"variant": "papr"}),
        (optim.LayerwiseTrust, {"base": "adamm"}),
        (optim.LayerwiseTrust, {"granularity": "layer"}),
        (optim.LayerwiseTrust, {"phi": (2.0, 1.0)}),
        (optim.Adam, {"decay": "couple"}),
        (optim.Adam, {"betas": (1.0, 0.9)}),
        (optim.SGD, {"momentum": 1.0}),
        (optim.SGD, {"rate": "between"}),
        (optim.SGD, {"nesterov": True, "momentum": 0.0}),
    ],
)
def test_unknown_variants_are_refused_in_a_group_too(make: Any, wrong: dict[str, Any]) -> None:
    for settings in ({"params": models()}, wrong), ({"params": models(), **wrong}, {}):
        with pytest.raises(ValueError, match=r"must|needs|bound"):
            make([settings[0]], **settings[1])
    optimizer = make(models())
    with pytest.raises(ValueError, match=r"must|needs|bound"):
        optimizer.add_param_group({"params": models(), **wrong})
    assert len(optimizer.param_groups) == 1


# 4: steps that are left out, queries ----------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("by", ["clip", "scaler"])
def test_a_step_that_is_left_out_is_not_counted(way: str, make: Make, by: str) -> None:
    """Not the first, either, nor where a gradient is missing at times."""
    whole, broken = models(), models()
    ours, theirs = make(broken), make(whole)
    step = 0
    for attempt in (False, True, True, False, True):
        gradients(broken, step)
        if not attempt:
            broken[1].grad[3, 4] = math.inf  # type: ignore[index]
        if by == "clip":
            ours.clip(1e9)
        else:
            ours.grad_scale, ours.found_inf = torch.tensor(1.0), torch.tensor(float(not attempt))
        ours.step()
        if attempt:
            gradients(whole, step)
            theirs.step()
            step += 1
    for a, b in zip(broken, whole):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert all(
        torch.equal(ours.state[a]["step"], theirs.state[b]["step"])
        for a, b in zip(broken, whole)
        if "step" in ours.state[a]
    )


@KERNELS
def test_a_scaler_leaves_out_a_step_that_is_not_finite(way: str, make: Make) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(torch.ones(()))  # begins the scale
    parameters = models()
    optimizer = make(parameters)
    gradients(parameters, 0, scaler.get_scale())
    parameters[0].grad[0] = math.nan  # type: ignore[index]
    before = copy.deepcopy(parameters)
    scaler.step(optimizer)
    assert equal(parameters, before)


@KERNELS
def test_counters_part_where_a_gradient_is_missing(way: str, make: Make) -> None:
    """Each parameter as if it were alone."""
    together, alone = models(), models()
    ours = make(together)
    theirs = [make([each]) for each in alone]
    if isinstance(ours, optim.Lamb) and ours.param_groups[0]["variant"] == "nvlamb":
        ours.param_groups[0]["max_norm"] = math.inf  # which couples them
        for each in theirs:
            each.param_groups[0]["max_norm"] = math.inf
    for step, missing in enumerate(((), (0,), (1, 2), (0, 1), ())):
        for parameters in (together, alone):
            gradients(parameters, step)
            for number in missing:
                parameters[number].grad = None
        ours.step()
        for each in theirs:
            each.step()
    for a, b in zip(together, alone):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@EVERY_WAY
def test_a_query_changes_nothing(way: str, make: Make) -> None:
    parameters = models()
    optimizer = make(parameters)
    for parameter in parameters:
        optimizer.split_by(parameter, optimizer.param_groups[0])
    optimizer.launches(optimizer.param_groups[0], parameters)
    assert not optimizer.state


# 3: stochastic rounding -----------------------------------------------------------------------------------------------


@KERNELS
def test_replicas_with_equal_gradients_stay_equal_under_stochastic_rounding(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    """Whatever each rank has drawn from its own generator; another seed or step gives another noise."""
    monkeypatch.setattr(base, "launchable", always)

    def trained(seed: int, rank: int, resume: bool) -> list[nn.Parameter]:
        torch.manual_seed(rank)
        parameters = models(*(torch.bfloat16,) * 3)
        group = {"params": parameters, "stochastic_rounding": True, "rounding_seed": seed}
        optimizer = make([group])
        for step in range(3):
            torch.rand(rank + 1)
            gradients(parameters, step)
            optimizer.step()
            if resume:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = make([{"params": parameters}])
                optimizer.load_state_dict(saved)
        return parameters

    one = trained(seed=0, rank=0, resume=False)
    assert equal(one, trained(seed=0, rank=1, resume=True))
    assert not equal(one, trained(seed=1, rank=0, resume=False))


def test_the_noise_differs_from_step_to_step_and_from_list_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "launchable", always)
    groups = [
        {"params": [nn.Parameter(torch.ones(512, dtype=torch.bfloat16))], "stochastic_rounding": True} for _ in range(2)
    ]
    optimizer = optim.Lion(groups, lr=1e-3)
    seen = []
    for _ in range(2):
        for group in optimizer.param_groups:
            group["params"][0].data.fill_(1.0)
            group["params"][0].grad = torch.ones(512, dtype=torch.bfloat16)
        optimizer.step()
        seen += [group["params"][0].detach().clone() for group in optimizer.param_groups]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_small_updates_of_bfloat16_parameters_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {}
    for stochastic in (False, True):
        monkeypatch.setattr(base, "launchable", always)
        parameter = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = Lion([{"params": [parameter], "stochastic_rounding": stochastic}], lr=1e-4)
        for _ in range(20):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        moved[stochastic] = 1 - parameter.detach().float().mean().item()
    assert moved[False] == 0
    assert moved[True] == pytest.approx(20e-4, rel=0.1)
    monkeypatch.setattr(base, "launchable", never)
    with pytest.raises(ValueError, match="stochastic rounding"):
        optimizer.step()


# 5: mixed groups, rates on the device ---------------------------------------------------------------------------------


@EVERY_WAY
def test_a_group_may_have_several_dtypes(way: str, make: Make) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    mixed, alone = models(*dtypes), models(*dtypes)
    ours, theirs = make(mixed), [make([each]) for each in alone]
    for each in (ours, *theirs):
        each.param_groups[0]["max_norm"] = math.inf  # LAMB's clipping couples them
    for step in range(3):
        gradients(mixed, step)
        ours.step()
        gradients(alone, step)
        for each in theirs:
            each.step()
    for a, b in zip(mixed, alone):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_one_launch_for_all_that_are_at_one_step_and_none_for_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    adam_kernel = pytest.importorskip("techniques.shared.adam_kernel")
    launches, adam_step = [], adam_kernel.adam_step

    def counted(parameters: list[Tensor], *columns: Any, **hyper: Any) -> None:
        launches.append(len(parameters))
        adam_step(parameters, *columns, **hyper)

    monkeypatch.setattr(adam_kernel, "adam_step", counted)
    monkeypatch.setattr(base, "launchable", always)
    parameters = models(torch.float32, torch.float32, torch.float64)
    optimizer = optim.AdamW(parameters, lr=0.01)
    for step in range(5):
        gradients(parameters, step)
        if step == 2:
            parameters[1].grad = None
        optimizer.step()
    assert launches == [2, 2, 1, 1, 1, 1, 1]


@KERNELS
def test_gradients_may_have_any_layout(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(base, "launchable", always)
    gradient = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    ends = []
    for each in (gradient, gradient.T.contiguous().T):
        parameter = nn.Parameter(torch.ones(20, 30))
        parameter.grad = each
        make([parameter]).step()
        ends.append([parameter])
    assert equal(*ends)


@EVERY_WAY
def test_the_learning_rate_may_be_a_tensor(way: str, make: Make) -> None:
    numbers, tensor = models(), models()
    plain, ours = make(numbers, lr=0.1), make(tensor, lr=torch.tensor(0.1, dtype=torch.float64))
    for step in range(3):
        for optimizer, parameters in ((plain, numbers), (ours, tensor)):
            gradients(parameters, step)
            optimizer.step()
        plain.param_groups[0]["lr"] *= 0.5
        ours.param_groups[0]["lr"].mul_(0.5)  # as a scheduler or a captured graph does
    for a, b in zip(numbers, tensor):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@KERNELS
def test_a_step_by_the_kernel_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """So a CUDA graph can capture it: nothing is read from tensors, neither rate, step, scale nor flag."""
    monkeypatch.setattr(base, "launchable", always)
    parameters = models()
    optimizer = make([{"params": parameters, "stochastic_rounding": True}], lr=torch.tensor(0.1))
    gradients(parameters, 0)
    optimizer.step()
    for name in ("item", "__float__", "__int__", "__bool__", "tolist"):
        monkeypatch.setattr(Tensor, name, lambda self: pytest.fail("the host waits"))
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    with _without_interpreter(monkeypatch, optimizer) as launched:
        optimizer.clip(1.0)
        optimizer.step()
    assert launched


class _without_interpreter:
    """Kernels are not run: the interpreter itself reads tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, optimizer: GroupedOptimizer) -> None:
        from suite.kernels import optimizer_parts
        from techniques.large_batch.shared import trust_kernel

        self.launched: list[Any] = []
        monkeypatch.setattr(
            optimizer_parts, "launch", lambda kernel, group, hyper, **own: self.launched.append((hyper, own))
        )
        for name in ("techniques.large_batch.lamb.kernel", "techniques.large_batch.lars.kernel"):
            module = __import__(name, fromlist=["trust_ratios"])
            monkeypatch.setattr(module, "trust_ratios", lambda *_, **__: None)
        del trust_kernel

    def __enter__(self) -> list[Any]:
        return self.launched

    def __exit__(self, *_: object) -> None:
        pass


# 7: schedulers --------------------------------------------------------------------------------------------------------


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: optim.AdamW(p, weight_decay=0.1), lambda p: torch.optim.AdamW(p, weight_decay=0.1)),
        (lambda p: optim.AdamW(p, fused=False), torch.optim.AdamW),
        (lambda p: optim.SGD(p, momentum=0.9), lambda p: torch.optim.SGD(p, momentum=0.9)),
        (lambda p: optim.SGD(p, momentum=0.9, fused=False), lambda p: torch.optim.SGD(p, momentum=0.9)),
        (lambda p: optim.AGD(p, momentum=0.9), None),
        (lambda p: optim.Lion(p), None),
        (lambda p: optim.ACClip(p), None),
        (lambda p: optim.Lars(p), None),
        (lambda p: optim.Lamb(p), None),
    ],
)
def test_schedulers_that_write_momentum_are_obeyed(way: str, ours: Any, theirs: Any) -> None:
    """As torch's own obey them; the others give other weights than with their momentum fixed."""
    ends = []
    for make, cycle in ((ours, True), (theirs or ours, theirs is not None)):
        parameters = models()
        optimizer = make(parameters)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6, cycle_momentum=cycle)
        for step in range(5):
            gradients(parameters, step)
            optimizer.step()
            scheduler.step()
        ends.append(parameters)
    if theirs is None:
        assert not equal(*ends)
    else:
        for a, b in zip(*ends):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda p: optim.AGD(p), lambda p: optim.APGnc(p, lr=0.1)])
def test_who_has_no_momentum_to_write_refuses_the_scheduler(make: Any) -> None:
    """AGD's schedule is its own, as is APGnc's: a written momentum would replace it, or do nothing, in silence."""
    with pytest.raises(ValueError, match="momentum"):
        one_cycle(make(models()))


# 8: what torch's have -------------------------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("scaled", [False, True])
def test_maximize_goes_uphill(way: str, make: Make, scaled: bool) -> None:
    up, down = models(), models()
    ours, theirs = make(up, maximize=True), make(down)
    for step in range(3):
        gradients(up, step)
        gradients(down, step, -1.0)
        if scaled:
            ours.clip(1.0)
            theirs.clip(1.0)
        ours.step()
        theirs.step()
    for a, b in zip(up, down):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_foreach_is_torchs_update_of_lists(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(base, "launchable", always)  # foreach keeps the kernel away
    ends = []
    for module in (optim, torch.optim):
        parameters = models()
        optimizer = getattr(module, name)(parameters, lr=0.1, foreach=True)
        if name == "SGD":
            optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.param_groups[0]["weight_decay"] = 0.1
        train(optimizer, parameters, range(3))
        ends.append(parameters)
    assert equal(*ends)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_capturable_is_refused_where_the_host_would_wait(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for launchable in (always, never):
        monkeypatch.setattr(base, "launchable", launchable)
        parameters = models()
        optimizer = getattr(optim, name)(parameters, capturable=True)
        gradients(parameters, 0)
        if launchable is always:
            optimizer.step()
        else:
            with pytest.raises(ValueError, match="leave capturable out"):
                optimizer.step()
