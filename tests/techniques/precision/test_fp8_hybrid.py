"""Eight-bit products beside a table of each format's numbers in numpy; scales from histories; and what is refused."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from suite.model.anatomy import weight_matrix
from suite.reading.recording import Recording
from techniques.fine_tuning.lora.technique import LoRA
from techniques.precision.fp8_hybrid import technique as fp8
from techniques.precision.fp8_hybrid.technique import (
    E4M3,
    E5M2,
    FORMATS,
    LARGEST_SCALE,
    Float8Hybrid,
    Float8Linear,
    cast,
    renew,
    scale_of,
)
from tests.runs import new_run

UNKNOWN = torch.zeros(())
EIGHT_BITS = {E4M3: 448.0, E5M2: 57344.0}


def numbers(dtype: torch.dtype) -> np.ndarray:
    """The finite numbers of a format that are not negative, by its definition: with E bits of exponent and M of
    mantissa, 2^(e - bias) (1 + m / 2^M), and below these m 2^(1 - bias - M)."""
    bits, mantissa = (4, 3) if dtype == E4M3 else (5, 2)
    bias = 2 ** (bits - 1) - 1
    normal = [2.0 ** (e - bias) * (1 + m / 2**mantissa) for e in range(1, 2**bits) for m in range(2**mantissa)]
    below = [m * 2.0 ** (1 - bias - mantissa) for m in range(2**mantissa)]
    special = 1 if dtype == E4M3 else 2**mantissa  # NaN alone; infinity and NaN
    return np.array(below + normal[: len(normal) - special])


def rounded(x: Tensor, scale: float, dtype: torch.dtype) -> Any:
    """The numbers that codes stand for, float64: the nearest of the format's, of two the one with an even place."""
    table = numbers(dtype)
    scaled = (x.detach().numpy().astype(np.float32) * np.float32(scale)).astype(np.float64)
    size = np.minimum(np.abs(scaled), table[-1])
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
    return np.copysign(np.where(up, high, low), scaled) / np.float64(np.float32(scale))


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * (spread * torch.randn(shape, generator=generator)).exp()


def own_scale(x: Tensor, dtype: torch.dtype, margin: int = 0) -> float:
    return float(np.float32(EIGHT_BITS[dtype]) / np.float32(x.abs().max().item()) / 2**margin)


def check(ours: Tensor | None, a: Any, b: Any, added: Any = 0.0) -> None:
    """The product a b^T in float64 within a float32 rounding for each summand, and eight for scales and the rest."""
    assert ours is not None
    bound = (a.shape[1] + 8) * 2.0**-24 * (np.abs(a) @ np.abs(b).T + np.abs(added)) + 1e-30
    assert (np.abs(ours.detach().double().numpy() - (a @ b.T + added)) <= bound).all()


def test_the_formats_largest_numbers() -> None:
    assert [numbers(dtype)[-1] for dtype in (E4M3, E5M2)] == [448.0, 57344.0]
    assert len(numbers(E4M3)) == 127 and len(numbers(E5M2)) == 124


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@given(exponent=st.integers(-100, 100), seed=st.integers(0, 99), known=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_cast_is_the_nearest_number_of_the_format(dtype: torch.dtype, exponent: int, seed: int, known: bool) -> None:
    x = drawn(9, 16, seed=seed, spread=3) * 2.0**exponent
    scale = own_scale(x, dtype) * (17 if known else 1)  # at 17 times its own scale much is clipped
    codes, columns, inverse = cast(x, dtype, torch.tensor(scale) if known else UNKNOWN)
    assert codes.dtype == dtype and torch.equal(columns.float(), codes.float().T)
    assert (codes.double().numpy() / np.float64(np.float32(scale)) == rounded(x, scale, dtype)).all()
    assert math.isclose(inverse.item() * scale, 1, rel_tol=2.0**-22)
    smallest = numbers(dtype)[8 if dtype == E4M3 else 4]  # normal number
    normal = (codes.float().abs() > smallest) & (codes.float().abs() < EIGHT_BITS[dtype])
    bound = 2.0**-4 if dtype == E4M3 else 2.0**-3
    assert ((codes.double() / scale - x.double()).abs() <= (bound + 2.0**-20) * x.double().abs())[normal].all()


@given(st.floats(2.0**-140, 3e38), st.integers(0, 8), st.sampled_from([448.0, 57344.0]))
def test_a_scaled_magnitude_is_within_the_format(amax: float, margin: int, largest: float) -> None:
    scale = scale_of(torch.tensor(amax), torch.tensor(largest), margin)
    assert 0 < scale <= LARGEST_SCALE and (1 / scale).isfinite()
    assert scale.double() * torch.tensor(amax).double() <= largest / 2**margin * (1 + 2.0**-23)


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_magnitude_that_says_nothing_gives_a_scale_of_one(value: float) -> None:
    assert scale_of(torch.tensor(value), torch.tensor(448.0)) == 1


def test_zeros_stay_zero_and_tiny_numbers_finite() -> None:
    for x in (torch.zeros(4, 16), torch.full((4, 16), 1e-44), torch.zeros(0, 16)):
        codes, _, inverse = cast(x, E4M3, UNKNOWN)
        assert inverse.isfinite() and codes.float().isfinite().all() and codes.shape == x.shape
    assert not cast(torch.zeros(4, 16), E5M2, UNKNOWN).rows.float().any()


def layer_of(transposed: bool, **own: Any) -> Float8Linear:
    torch.manual_seed(0)
    linear: nn.Module = Conv1D(48, 32) if transposed else nn.Linear(32, 48)
    nn.init.normal_(linear.bias)  # type: ignore[arg-type]
    return Float8Linear(linear, **own)


def passed(layer: Float8Linear, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of a pass: of the input, the weight as [out, in], the bias."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(g)
    dw = layer.linear.weight.grad
    assert isinstance(x.grad, Tensor) and isinstance(dw, Tensor)
    return y.view(-1, 48), x.grad.view(-1, 32), dw.T if isinstance(layer.linear, Conv1D) else dw, layer.bias.grad


def check_pass(layer: Float8Linear, x: Tensor, g: Tensor, scales: list[float]) -> None:
    y, dx, dw, db = passed(layer, x, g)
    w = weight_matrix(layer.linear).detach()
    flat = (x.view(-1, 32), w, g.view(-1, 48))
    p, q, r = (rounded(*each) for each in zip(flat, scales, FORMATS))
    check(y, p, q, layer.bias.detach().double().numpy())
    check(dx, r, q.T)
    check(dw, r.T, p.T)
    torch.testing.assert_close(db.double(), g.double().sum((0, 1)))


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("transposed", [False, True], ids=["Linear", "Conv1D"])
@pytest.mark.parametrize("history", [0, 2], ids=["dynamic", "delayed"])
def test_step_by_step_the_products_are_those_of_the_rounded_operands(
    history: int, transposed: bool, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magnitudes rise and fall, so that the largest enters the history of two steps, and leaves it."""
    if emulated:
        monkeypatch.setattr(fp8, "multiplies_eight_bits", lambda device: False)
    layer = layer_of(transposed, history=history, margin=1)
    before: list[list[float]] = []
    for step, size in enumerate((1.0, 7.0, 0.3, 0.2, 0.1)):
        x, g = size * drawn(2, 5, 32, seed=step), 1e-5 * size * drawn(2, 5, 48, seed=9 + step)
        here = [each.abs().max().item() for each in (x, layer.weight, g)]
        amax = torch.tensor(before[-history:]).amax(0).tolist() if history and before else here
        check_pass(layer, x, g, [float(np.float32(EIGHT_BITS[f]) / np.float32(a) / 2) for a, f in zip(amax, FORMATS)])
        before.append(here)
        if history:
            renew([layer])
            assert layer.history[:, 0].tolist() == here
        layer.linear.weight.data.mul_(1.5)  # type: ignore[operator]


def test_of_several_runs_in_a_step_the_largest_magnitude_counts() -> None:
    layer = layer_of(False)
    for size in (1.0, 5.0, 2.0):
        passed(layer, torch.full((2, 4, 32), size), torch.full((2, 4, 48), -size))
    layer.eval()
    layer(torch.full((1, 4, 32), 100.0))
    layer.train()
    with torch.no_grad():
        layer(torch.full((1, 4, 32), 100.0))
    assert not layer.scales.any(), "a step's magnitudes are for later steps"
    renew([layer])
    assert layer.history[:, 0].tolist() == [5.0, layer.weight.abs().max().item(), 5.0]
    assert layer.scales[0] == np.float32(448) / np.float32(5) and not layer.seen.any()


def test_what_is_not_finite_spoils_its_rows_and_no_history() -> None:
    layer = layer_of(False)
    x, g = drawn(1, 6, 32), drawn(1, 6, 48, seed=1)
    passed(layer, x, g)
    renew([layer])
    scales = layer.scales.clone()
    for value in ("nan", "inf", "-inf"):
        spoilt_x, spoilt_g = x.clone(), g.clone()
        spoilt_x[0, 2, 5] = spoilt_g[0, 3, 7] = float(value)
        y, dx, dw, _ = passed(layer, spoilt_x, spoilt_g)
        assert not y[2].isfinite().any() and y[[0, 1, 3, 4, 5]].isfinite().all()
        assert not dx[3].isfinite().any() and dx[[0, 1, 2, 4, 5]].isfinite().all()
        assert not dw[:, 5].isfinite().any() and not dw[7].isfinite().any()
        renew([layer])
        assert layer.history.isfinite().all() and torch.equal(layer.scales, scales)
    assert (layer.history[[0, 2], :3] == 0).all(), "such steps say nothing"


def test_zeros_before_anything_else_leave_the_scale_unknown() -> None:
    """As behind a branch whose gate opens later: its first gradient must not be cast with a scale of 1."""
    layer = layer_of(False)
    passed(layer, torch.zeros(1, 6, 32), torch.zeros(1, 6, 48))
    renew([layer])
    assert layer.scales[[0, 2]].tolist() == [0, 0]
    x, g = 1e-6 * drawn(1, 6, 32), 1e-9 * drawn(1, 6, 48, seed=1)
    scales = [own_scale(each, f) for each, f in zip((x, layer.weight, g), FORMATS)]
    check_pass(layer, x, g, scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_in_and_out(dtype: torch.dtype) -> None:
    layer = layer_of(False).to(dtype)
    x = drawn(3, 32).to(dtype).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert x.grad is not None and {y.dtype, x.grad.dtype, layer.weight.grad.dtype} == {dtype}
    wide = layer_of(False)
    with torch.autocast("cpu", torch.bfloat16):
        y = wide(x.detach().float())
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and wide.weight.grad.dtype == torch.float32


def test_a_user_s_own_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Float8Linear(nn.Linear(16, 32)), nn.GELU(), Float8Linear(nn.Linear(32, 16)))
    layers = [each for each in model if isinstance(each, Float8Linear)]
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(30):
        loss = (model(drawn(64, 16)) - drawn(64, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        renew(layers)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(drawn(64, 16)), model(drawn(64, 16)))


def test_an_adapted_layer_computes_the_layer_in_eight_bits() -> None:
    run = new_run("gpt", LoRA(), size="pico", steps=4)
    model = Float8Hybrid().model(run.model, run)
    inside = [path for path, each in model.named_modules() if isinstance(each, Float8Linear)]
    assert any(path.endswith("c_attn.linear") for path in inside)
    assert math.isfinite(run.train(1)[0])


def odd(run: Any, count: int | None = None) -> list[str]:
    """Gives linear layers of the model a size that no tensor core takes."""
    parts = run.anatomy.linears[:count]
    for path, _ in parts:
        run.anatomy.replace(path, nn.Linear(20, 20))
    return [path for path, _ in parts]


def test_a_layer_whose_sizes_do_not_fit_is_named_and_stays() -> None:
    run = new_run("vit", size="pico")
    paths = odd(run, 2)
    with pytest.warns(UserWarning, match=f"leaves 2 of 8 linear layers as they are.*: {', '.join(paths)}$"):
        model = Float8Hybrid().model(run.model, run)
    assert sum(isinstance(each, Float8Linear) for each in model.modules()) == 6
    assert all(type(model.get_submodule(path)) is nn.Linear for path in paths)


def test_what_is_refused() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    run = new_run("vit", size="pico")
    odd(run)
    with pytest.raises(ValueError, match="multiples of 16, and this model's blocks have none: choose such a width"):
        Float8Hybrid().model(run.model, run)
    path = run.anatomy.linears[0].path
    run.anatomy.replace(path, Doubled(32, 32))
    with pytest.raises(ValueError, match=f"{path} is a Doubled, which computes in its own way: leave fp8_hybrid out"):
        Float8Hybrid().model(run.model, run)


def test_the_probes_of_dynamic_scales_are_the_same() -> None:
    recording = Recording(new_run("gpt", "fp8_hybrid:scaling=dynamic,margin=1", size="pico", recipe="classic", steps=3))
    recording.train(3)
    probes = {name.partition(".")[2]: value for name, value in recording.probes().items()}
    zero = ("beyond_bound", "scales_off", "history_off", "wrong_formats", "left_floating", "unlike_the_step")
    assert all(probes[name] == 0 for name in zero)


# the kernel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("written", [E4M3, E5M2])
@pytest.mark.parametrize(
    ("m", "k", "known"), [(1, 1, 0.0), (70, 131, 0.0), (33, 16, 37.3), (5, 257, 1e30), (0, 16, 0.0)]
)
def test_the_kernel_has_torchs_codes(m: int, k: int, known: float, written: torch.dtype, read: torch.dtype) -> None:
    kernel = pytest.importorskip("techniques.precision.fp8_hybrid.kernel")
    x = drawn(m, k, spread=4).to(read)
    if m > 4:
        x.view(-1)[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    ours, theirs = torch.tensor(0.5), torch.tensor(0.5)
    codes, columns, inverse = kernel.cast_both(x, written, torch.tensor(known), 2, ours)
    expected = cast(x, written, torch.tensor(known), 2, theirs)
    nan = expected.rows.isnan()
    assert codes.isnan().equal(nan)
    assert torch.equal(codes.view(torch.uint8)[~nan], expected.rows.view(torch.uint8)[~nan])
    assert columns.shape == (k, -(-m // 16) * 16) and not columns[:, m:].float().any()
    assert torch.equal(columns[:, :m].view(torch.uint8), codes.view(torch.uint8).T)
    torch.testing.assert_close(inverse, expected.inverse, rtol=2.0**-22, atol=0)
    assert ours == theirs or not (ours.isfinite() or theirs.isfinite())


def test_a_magnitude_that_is_not_asked_for_is_not_written() -> None:
    kernel = pytest.importorskip("techniques.precision.fp8_hybrid.kernel")
    x = drawn(16, 32)
    codes = kernel.cast_both(x, E4M3, UNKNOWN)[0]
    assert torch.equal(codes.float(), cast(x, E4M3, UNKNOWN).rows.float())
