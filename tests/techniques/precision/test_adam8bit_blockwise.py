"""The dynamic map against brute force and other packages' tables; 8-bit AdamW against Adam's formula on decoded
moments; its kernel (here under the interpreter) against torch's operators."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from leantrain.optim import AdamW8bit
from suite.kernels import optimizer as base
from techniques.precision.adam8bit_blockwise.codes import FIRST, SECOND
from techniques.precision.adam8bit_blockwise.optimizer import STRETCH
from techniques.precision.shared.dynamic_map import DynamicMap
from techniques.precision.shared.low_bit import decode_blocks, encode_blocks

triton = pytest.importorskip("triton")  # has no wheel for some platforms
tl = pytest.importorskip("triton.language")
optimizer_parts = pytest.importorskip("suite.kernels.optimizer_parts")
kernel = pytest.importorskip("techniques.precision.adam8bit_blockwise.kernel")
peer = pytest.importorskip("techniques.precision.adam8bit_blockwise.peer")
dynamic_map_kernel = pytest.importorskip("techniques.precision.shared.dynamic_map_kernel")

MAPS = {"signed": FIRST, "unsigned": SECOND, "4bit": DynamicMap(4, signed=True)}
each_map = pytest.mark.parametrize("numbers", MAPS.values(), ids=MAPS)


def brute_force(x: Tensor, values: Tensor) -> Tensor:
    """The lowest of the nearest values, in float64, where differences of float32 are exact."""
    return (x.double()[:, None] - values.double()).abs().argmin(1)


def neighbourhoods(values: Tensor, steps: int = 8) -> Tensor:
    """The float32 numbers around each border between two values, and around each value."""
    middle = torch.cat([((values[1:].double() + values[:-1].double()) / 2).float(), values])
    around, up, down = [middle], middle, middle
    for _ in range(steps):
        up, down = up.nextafter(torch.full_like(up, 2)), down.nextafter(torch.full_like(down, -2))
        around += [up, down]
    every = torch.cat(around)
    return every[(every <= 1) & (every >= (-1 if values[0] < 0 else 0))]


@each_map
def test_encoding_is_the_nearest_of_all_values_on_either_side_of_every_border(numbers: DynamicMap) -> None:
    """With the one below, that is of every float32: codes rise, and so do brute force's."""
    x = neighbourhoods(numbers.values)
    assert torch.equal(numbers.encode(x).long(), brute_force(x, numbers.values))
    rising = torch.arange(0, 0x3F800001, 2**14 - 1, dtype=torch.int32).view(torch.float32)
    signed = torch.cat([-rising.flip(0), rising]) if numbers.signed else rising
    assert (numbers.encode(signed).int().diff() >= 0).all()


@each_map
def test_the_lines_are_right_but_for_a_ten_thousandth_of_a_border(numbers: DynamicMap) -> None:
    """What a kernel computes: the other of two codes only where both are as near to 2e-4."""
    x = neighbourhoods(numbers.values)
    guess, distances = numbers.guess(x).long(), (x.double()[:, None] - numbers.values.double()).abs()
    chosen, nearest = distances.gather(1, guess[:, None])[:, 0], distances.amin(1)
    assert (chosen <= nearest * (1 + 2e-4)).all()


def test_the_maps_are_other_packages_tables() -> None:
    theirs = pytest.importorskip("bitsandbytes.functional").create_dynamic_map
    for numbers in (FIRST, SECOND):
        torch.testing.assert_close(numbers.values, theirs(numbers.signed), rtol=2e-7, atol=0)
    theirs = pytest.importorskip("torchao.optim.quant_utils").create_dynamic_map
    torch.testing.assert_close(MAPS["4bit"].values, torch.tensor(theirs(True, 3, 4)), rtol=2e-7, atol=0)
    torch.testing.assert_close(FIRST.values, torch.tensor(theirs(True)), rtol=2e-7, atol=0)


@each_map
def test_zero_and_one_are_values_and_every_value_has_its_code(numbers: DynamicMap) -> None:
    assert numbers.values[numbers.zero] == 0
    assert numbers.values[-1] == 1
    assert (numbers.values.diff() > 0).all()
    codes = torch.arange(2**numbers.bits, dtype=torch.uint8)
    assert torch.equal(numbers.encode(numbers.values), codes)
    assert torch.equal(numbers.decode(codes.view(-1, 2)).view(-1), numbers.values)


@pytest.mark.parametrize("numbers", [FIRST, SECOND], ids=["signed", "unsigned"])
def test_blocks_of_zeros_of_the_smallest_numbers_and_of_what_is_none(numbers: DynamicMap) -> None:
    x = torch.zeros(4 * 64 + 5)
    x[64:128] = 1e-41  # has no reciprocal in float32
    x[128], x[192] = math.inf, math.nan
    codes, scales = encode_blocks(x, 64, numbers)
    decoded = decode_blocks(codes, scales, 64, numbers)
    assert (decoded[:128] == 0).all()
    assert (decoded[256:] == 0).all()
    assert not decoded[128:256].isfinite().any()  # it stays visible


# the optimizer --------------------------------------------------------------------------------------------------------

SHAPES = (64, 70), (5000,), (30, 20), (4096,)  # 2.2 blocks of 2048; a tail; too small; as small as may be


def parameters(dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(every: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in every:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def train(optimizer: torch.optim.Optimizer, every: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        gradients(every, step)
        optimizer.step()


@pytest.mark.parametrize("block", [64, 2048])
def test_update_by_update_adamw_of_the_decoded_moments(block: int) -> None:
    """In float64; every update begins from the state that the optimizer really has."""
    every = parameters()
    optimizer = AdamW8bit(every, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1, block=block)
    for step in range(4):
        before = []
        for parameter in every:
            state = optimizer.state[parameter]
            m = v = torch.zeros(parameter.numel(), dtype=torch.float64)
            if "first_codes" in state:
                m = decode_blocks(state["first_codes"].view(-1), state["first_scales"], block, FIRST).double()
                v = decode_blocks(state["second_codes"].view(-1), state["second_scales"], block, SECOND).double()
            elif state:
                m, v = state["first_moment"].double().view(-1), state["second_moment"].double().view(-1)
            before.append((parameter.detach().double().clone(), m.view_as(parameter), v.view_as(parameter)))
        gradients(every, step)
        optimizer.step()
        for parameter, (p, m, v) in zip(every, before, strict=True):
            assert parameter.grad is not None
            g = parameter.grad.double()
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + (1 - 0.99) * g.square()
            direction = m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8)
            torch.testing.assert_close(
                parameter.double(), p * (1 - 0.05 * 0.1) - 0.05 * direction, rtol=1e-5, atol=1e-6
            )


def test_a_stretch_of_blocks_changes_nothing_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = (parameters(shapes=((9000,),)) for _ in range(2))
    train(AdamW8bit(whole, block=256), whole, range(3))
    assert STRETCH % 2048 == 0
    monkeypatch.setattr("techniques.precision.adam8bit_blockwise.optimizer.STRETCH", 2048)
    train(AdamW8bit(parts, block=256), parts, range(3))
    assert torch.equal(whole[0], parts[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_and_a_copied_optimizer_continue_to_the_bit(dtype: torch.dtype) -> None:
    every = parameters(dtype)
    optimizer = AdamW8bit(every, lr=0.01)
    train(optimizer, every, range(2))
    copied, twins = copy.deepcopy((optimizer, every))
    loaded = copy.deepcopy(every)
    resumed = AdamW8bit(loaded, lr=1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state[loaded[0]]["first_codes"].dtype == torch.uint8
    assert resumed.state[loaded[0]]["first_scales"].dtype == torch.float32
    for its, own in ((optimizer, every), (copied, twins), (resumed, loaded)):
        train(its, own, range(2, 4))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(every, twins, loaded, strict=True))


def test_one_parameter_may_be_laid_out_in_any_way() -> None:
    plain, turned = parameters(shapes=((64, 80),)), parameters(shapes=((64, 80),))
    turned[0].data = turned[0].data.T.contiguous().T
    for every in (plain, turned):
        train(AdamW8bit(every), every, range(2))
    assert torch.equal(plain[0], turned[0])


def test_bitsandbytes_makes_the_same_steps() -> None:
    theirs = pytest.importorskip("bitsandbytes.optim").AdamW8bit
    own, other = parameters(shapes=((64, 128),)), parameters(shapes=((64, 128),))
    hyper = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    ours, others = AdamW8bit(own, block=256, **hyper), theirs(other, **hyper)
    start = own[0].detach().clone()
    for step in range(5):
        for optimizer, every in ((ours, own), (others, other)):
            train(optimizer, every, range(step, step + 1))
    difference = (own[0] - other[0]).abs()
    assert difference.mean() < 0.01 * (own[0] - start).abs().mean()  # codes at a border may differ


# the kernel -----------------------------------------------------------------------------------------------------------


def always(tensors: list[Tensor]) -> bool:
    """CPU tensors go the way of a GPU's."""
    return all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


@pytest.mark.parametrize("block", [64, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_does_what_torch_does(monkeypatch: pytest.MonkeyPatch, block: int, dtype: torch.dtype) -> None:
    """One step from equal states; clipped, too."""
    own = parameters(dtype)
    optimizer = AdamW8bit(own, lr=0.05, block=block)
    train(optimizer, own, range(2))
    twin, copied = copy.deepcopy((optimizer, own))
    for its, every, kernel in ((optimizer, own, False), (twin, copied, True)):
        if kernel:
            monkeypatch.setattr(base, "launchable", always)
        gradients(every, 2)
        its.clip(3.0)
        its.step()
    for a, b in zip(own, copied, strict=True):
        torch.testing.assert_close(a, b, rtol=torch.finfo(dtype).eps * 4, atol=1e-6)
        mine, theirs = optimizer.state[a], twin.state[b]
        for name in ("first", "second") if "first_codes" in mine else ():
            torch.testing.assert_close(mine[f"{name}_scales"], theirs[f"{name}_scales"], rtol=1e-6, atol=0)
            apart = (mine[f"{name}_codes"].int() - theirs[f"{name}_codes"].int()).abs()
            assert apart.max() <= 1
            assert apart.float().mean() < 1e-3


@triton.jit
def coded(x, codes, values, table, BITS: tl.constexpr, SIGNED: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]
    at = tl.arange(0, N)
    tl.store(codes + at, dynamic_map_kernel.encode(tl.load(x + at), table, BITS, SIGNED) & (2**BITS - 1))
    tl.store(values + at, dynamic_map_kernel.decode(at % 2**BITS, table, BITS, SIGNED))


@each_map
def test_the_kernels_arithmetic_is_the_map(numbers: DynamicMap) -> None:
    """Its codes are those of the lines, or of a border's other side; of what is no number it has some code."""
    x = torch.cat([neighbourhoods(numbers.values), torch.tensor([0.0, -0.0, 1e-40, 1e-20, math.nan, -math.nan])])
    x = x if numbers.signed else x[(x >= 0) | x.isnan()]
    x = torch.cat([x, x.new_zeros(2 ** (len(x) - 1).bit_length() - len(x))])
    codes, values = torch.empty(len(x), dtype=torch.int32), torch.empty(len(x))
    coded[(1,)](x, codes, values, numbers.table, numbers.bits, numbers.signed, len(x))
    distances = (x.double()[:, None] - numbers.values.double()).abs().nan_to_num(0.0)
    assert (distances.gather(1, codes.long()[:, None])[:, 0] <= distances.amin(1) * (1 + 2e-4)).all()
    torch.testing.assert_close(values[: 2**numbers.bits], numbers.values, rtol=1e-6, atol=0)


def test_more_than_2_to_the_31_elements_by_address_arithmetic() -> None:
    """A program deep inside a tensor too large to allocate; only what it may touch is there."""
    size, block = optimizer_parts.BLOCK, 256
    chunk = 2**32 // size + 1
    inputs = peer.make([size], torch.device("cpu"), torch.Generator().manual_seed(0), torch.float32, block)
    expected = peer.reference(inputs, block, 1.0)
    rows = [inputs[name][0] for name in ("parameters", "first_codes", "second_codes", "gradients")]
    table = torch.tensor([*(each.data_ptr() - chunk * size * each.itemsize for each in rows), chunk * size + size])
    scales = torch.tensor([inputs[n][0].data_ptr() - chunk * size // block * 4 for n in peer.STATES[1::2]] + [0])
    correction, root = kernel.corrections(peer.STEP, peer.BETA1, peer.BETA2)
    kernel.adam8bit_kernel[(1,)](
        table.view(-1, 1),
        torch.tensor([chunk]),
        scales.view(-1, 1),
        FIRST.table,
        SECOND.table,
        1,
        None,
        None,
        None,
        peer.BETA1,
        1 - peer.BETA1,
        peer.BETA2,
        1 - peer.BETA2,
        1 - peer.LR * peer.DECAY,
        peer.LR / correction,
        root,
        peer.EPS,
        **kernel._constants([each.dtype for each in rows], block),
    )
    for name in ("parameters", "first_scales", "second_scales"):
        torch.testing.assert_close(inputs[name][0].double(), expected[name][0], rtol=1e-5, atol=1e-5)
