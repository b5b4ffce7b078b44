"""Mesa's codes against their formula in float64, its running ranges, its bytes; saved and resumed, and refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.meters.activations import SavedActivations
from techniques.activation_compression.mesa.codes import decode, encode, followed, ranges
from techniques.activation_compression.mesa.technique import Mesa
from tests.runs import new_run


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.floats(-50, 50), st.floats(0.01, 50))
def test_codes_are_the_formula_in_float64(outer: int, groups: int, inner: int, low: float, width: float) -> None:
    x = torch.randn(outer, groups, inner, generator=noise()) * width + low
    clip = torch.stack([torch.full((groups,), low), torch.full((groups,), width)])
    codes = encode(x, clip, noise(1))
    u = torch.rand(x.shape, generator=noise(1)).double()
    beta, alpha = clip.double()[:, :, None]
    exact = (255 * (x.double() - beta) / alpha + u).clamp(0, 255.999)
    assert codes.dtype == torch.uint8
    off = codes.double() - exact.floor()
    boundary = (exact - exact.round()).abs() < 1e-3 * (1 + abs(low) / width)
    assert bool(((off == 0) | (boundary & (off.abs() <= 1))).all())
    back = beta + codes.double() * alpha / 255
    torch.testing.assert_close(decode(codes, clip).double(), back, rtol=1e-5, atol=1e-5 * (abs(low) + width))


def test_ranges_are_those_of_each_group() -> None:
    x = torch.randn(6, 3, 5, generator=noise())
    for group in range(3):
        values = x[:, group].flatten().tolist()
        assert ranges(x)[:, group].tolist() == pytest.approx([min(values), max(values) - min(values)])


def test_a_group_without_a_range_comes_back_to_the_bit() -> None:
    x = torch.full((4, 2, 3), 0.7)
    clip = ranges(x)
    assert torch.equal(decode(encode(x, clip, noise()), clip), x)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.floats(0, 0.99))
def test_the_running_average_is_its_sum(values: list[float], decay: float) -> None:
    own = Mesa(decay=decay)
    for value in values:
        last = own.follow("block.0", torch.tensor([[value], [1.0]]))
    count = len(values)
    weights = [decay ** (count - 1), *((1 - decay) * decay ** (count - 1 - k) for k in range(1, count))]
    expected = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    assert last[0].item() == pytest.approx(expected, abs=1e-4)
    assert last[1].item() == pytest.approx(1.0)


def test_another_number_of_heads_begins_anew() -> None:
    own = Mesa()
    own.follow("block.0", torch.ones(2, 4))
    assert torch.equal(own.follow("block.0", torch.zeros(2, 2)), torch.zeros(2, 2))


def test_followed_is_exact_at_its_ends() -> None:
    assert torch.equal(followed(torch.ones(2, 1), torch.zeros(2, 1), 0.0), torch.zeros(2, 1))


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_the_first_loss_is_the_plain_one_to_the_bit_and_a_byte_is_kept_for_each_value(baseline: str) -> None:
    run = new_run(baseline, "mesa", size="pico", recipe="classic", steps=4)
    plain = new_run(baseline, size="pico", recipe="classic", steps=4)
    batch, _ = plain.data.batch(0, 0, 4)
    seen = {}
    for each in (run, plain):
        with SavedActivations(each.model) as meter, each.technique.around_step(each):
            loss = each.forward(batch)
        seen[each] = loss.item(), meter.saved_bytes
        del loss
    (loss, kept), (expected, whole) = seen[run], seen[plain]
    assert loss == expected
    assert kept < 0.5 * whole
