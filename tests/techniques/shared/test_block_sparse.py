"""Products with the kept blocks of a mask against masked dense ones, on the CPU and by the kernels interpreted;
masks of whole blocks; and runs that multiply so against runs that multiply with the zeros, too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from suite.loop.data import mixed_seed
from suite.meters.flops import FlopCounter
from techniques.shared.sparse.block_sparse import (
    BlockSparseLinear,
    expanded,
    product,
    runs,
    summed,
    weight_gradient,
)
from techniques.shared.sparse.masks import attach, density, masked
from techniques.shared.sparse.topology import highest, random_mask
from tests.runs import new_recording, new_run

BLOCK_SPARSE = "block=8,execution=block_sparse"


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def case(block: int, rows: int, columns: int, share: float, tokens: int, dtype: torch.dtype = torch.float64):
    """A mask [n, m], the weight that it masks, and x [tokens, m], g [tokens, n]."""
    random = generator()
    mask = expanded(random_mask(torch.Size([rows, columns]), share, random), block)
    shapes = (mask.shape, (tokens, columns * block), (tokens, rows * block))
    weight, x, g = (torch.randn(*shape, generator=random) for shape in shapes)
    return mask, *(each.to(dtype) for each in (weight * mask, x, g))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.floats(0, 1), st.integers(0, 9))
def test_products_are_those_with_the_masked_matrix(block, rows, columns, share, tokens):
    mask, weight, x, g = case(block, rows, columns, share, tokens)
    spoilt = weight + (~mask) * 1e9  # what is not kept is never read
    torch.testing.assert_close(product(x, spoilt, mask, block, False), x @ weight.T)
    torch.testing.assert_close(product(g, spoilt, mask, block, True), g @ weight)
    torch.testing.assert_close(weight_gradient(g, x, mask, block), (g.T @ x) * mask)


def test_adjacent_blocks_are_multiplied_at_once():
    blocks = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    assert [(rows.start, columns.start, columns.stop) for rows, columns in runs(expanded(blocks, 2), 2)] == [
        (0, 0, 4),
        (0, 6, 8),
        (4, 0, 8),
    ]


def test_narrow_numbers_are_summed_in_float32():
    mask, weight, x, g = case(16, 4, 24, 0.9, 30, torch.bfloat16)
    for own, exact in (
        (product(x, weight, mask, 16, False), x.double() @ weight.double().T),
        (weight_gradient(g, x, mask, 16), (g.double().T @ x.double()) * mask),
    ):
        assert own.dtype == torch.bfloat16
        torch.testing.assert_close(own.double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True], ids=["linear", "conv1d"])
@pytest.mark.parametrize("dense", [False, True])
def test_a_layer_and_its_gradients_are_the_masked_layers(transposed: bool, dense: bool) -> None:
    torch.manual_seed(0)
    linear = (Conv1D(24, 40) if transposed else nn.Linear(40, 24)).double()
    attach(linear, expanded(random_mask(torch.Size([each // 8 for each in linear.weight.shape]), 0.4, generator()), 8))
    mask = linear.get_buffer("sparsity_mask")
    x = torch.randn(3, 5, 40, dtype=torch.float64, requires_grad=True)
    expected = linear(x)
    expected.square().sum().backward()
    wanted = [x.grad, linear.bias.grad, linear.weight.grad if dense else linear.weight.grad * mask]
    x.grad = linear.bias.grad = linear.weight.grad = None
    own = BlockSparseLinear(linear, 8, dense_gradient=dense)
    assert own.state_dict().keys() == linear.state_dict().keys()
    y = own(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    for got, want in zip([x.grad, own.bias.grad, own.weight.grad], wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_flops_are_those_of_the_blocks():
    mask, weight, x, g = case(4, 3, 5, 0.4, 7)
    with FlopCounter() as counter:
        product(x, weight, mask, 4, False)
        product(g, weight, mask, 4, True)
        weight_gradient(g, x, mask, 4)
    assert counter.total == 3 * 2 * 7 * int(mask.sum()) and not counter.uncounted


# the kernels ----------------------------------------------------------------------------------------------------------


kernel = pytest.importorskip("techniques.shared.sparse.block_sparse_kernel")  # not every platform has Triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("block", "rows", "columns", "tokens"), [(16, 3, 5, 150), (32, 2, 3, 64), (128, 2, 1, 3)])
def test_kernels_are_the_products(dtype: torch.dtype, block: int, rows: int, columns: int, tokens: int) -> None:
    mask, weight, x, g = case(block, rows, columns, 0.5, tokens, dtype)
    wide = [each.double() for each in (weight, x, g)]
    bounds = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4e-5 if dtype == torch.float32 else 1e-3}
    pairs = (
        (kernel.product(x, weight, mask, block, False), wide[1] @ wide[0].T),
        (kernel.product(g, weight, mask, block, True), wide[2] @ wide[0]),
        (kernel.weight_gradient(g, x, mask, block), (wide[2].T @ wide[1]) * mask),
    )
    for own, exact in pairs:
        assert own.dtype == dtype
        torch.testing.assert_close(own.double(), exact, **bounds)


def test_kernels_follow_a_mask_that_changes_in_place() -> None:
    mask, weight, x, _ = case(16, 2, 2, 0.5, 4, torch.float32)
    weight += torch.randn(weight.shape, generator=generator())
    for _ in range(2):
        torch.testing.assert_close(kernel.product(x, weight, mask, 16, False), x @ (weight * mask).T)
        mask.copy_(~mask)
    empty = kernel.product(x[:0], weight, mask, 16, True)
    assert empty.shape == (0, 32) and not kernel.weight_gradient(x[:0], x[:0], mask, 16).any()


def test_kernels_refuse_other_blocks_and_dtypes() -> None:
    mask, weight, x, _ = case(8, 2, 2, 0.5, 4, torch.float32)
    with pytest.raises(ValueError, match="16, 32, 64, 128 wide, not 8"):
        kernel.product(x, weight, mask, 8, False)
    with pytest.raises(ValueError, match="execution=masked"):
        kernel.weight_gradient(x.double(), x.double(), expanded(mask[:1, :1], 16), 16)


# masks of blocks ------------------------------------------------------------------------------------------------------


def test_sums_over_blocks_undo_expansion():
    scores = torch.arange(24.0).view(4, 6)
    assert summed(scores, 2).tolist() == [[14.0, 22.0, 30.0], [62.0, 70.0, 78.0]]
    assert summed(scores, 1) is scores
    assert torch.equal(summed(expanded(summed(scores, 2), 2), 2), 4 * summed(scores, 2))


def whole_blocks(mask: Tensor, block: int) -> bool:
    return torch.equal(mask, expanded(mask[::block, ::block], block))


@pytest.mark.parametrize(
    ("name", "baseline"),
    [("rigl:interval=3,", "gpt"), ("set:interval=3,", "vit"), ("snip:", "gpt"), ("grasp:sparsity=0.7,", "vit")],
)
def test_a_run_that_multiplies_with_blocks_is_the_masked_run(name: str, baseline: str, tmp_path: Path) -> None:
    """Update by update, up to the order of sums, also after it was saved and resumed."""
    own = new_run(baseline, f"{name}{BLOCK_SPARSE}", size="pico", recipe="classic", steps=8)
    plain = new_run(baseline, f"{name}block=8", size="pico", recipe="classic", steps=8)
    assert sum(isinstance(each, BlockSparseLinear) for each in own.model.modules()) == len(own.anatomy.linears)
    start = [mask.clone() for _, mask in masked(own.anatomy)]
    for step in range(8):
        own.train(1)
        plain.train(1)
        for (weight, mask), (expected, wanted) in zip(masked(own.anatomy), masked(plain.anatomy), strict=True):
            assert torch.equal(mask, wanted) and whole_blocks(mask, 8)
            torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)
        if step == 2:  # the next step of RigL grows
            own.save(tmp_path / "state")
            own = new_run(baseline, f"{name}{BLOCK_SPARSE}", size="pico", recipe="classic", steps=8)
            own.load(tmp_path / "state")
    moved = any(not torch.equal(mask, old) for (_, mask), old in zip(masked(own.anatomy), start, strict=True))
    assert moved == ("interval" in name)
    assert own.count_step().flops < 0.5 * plain.count_step().flops


def test_rigl_pays_for_dense_gradients_in_the_steps_that_grow_and_in_no_others():
    run = new_run("gpt", f"rigl:interval=3,{BLOCK_SPARSE}", size="pico", recipe="classic", steps=12)
    own = [weight for weight, _ in masked(run.anatomy)]
    tokens = math.prod(run.next_batch()[0]["input_ids"].shape)
    flops = [run.count_step().flops for _ in range(8)]
    dense, kept = sum(each.numel() for each in own), density(run)
    grown = flops[0] - flops[1]
    assert flops == [flops[0], flops[1], flops[1]] * 2 + flops[:2]
    assert grown == pytest.approx(2 * tokens * dense * (1 - kept))


def test_snip_ranks_blocks_by_their_share_of_the_sensitivity():
    fine = new_run("gpt", size="pico", recipe="classic", steps=8)
    batch, _ = fine.data.batch(mixed_seed(fine.seed, 2), 0, fine.recipe.batch_size)
    fine.baseline.losses(fine.baseline.forward(fine.model.eval(), batch), batch).mean().backward()
    weights = [part.module.get_parameter("weight") for part in fine.anatomy.linears]
    scores = [(each * each.grad).abs().detach().unfold(0, 8, 8).unfold(1, 8, 8).sum((-1, -2)) for each in weights]  # type: ignore[operator]
    expected = highest(scores, round(0.2 * sum(each.numel() for each in scores)))
    run = new_run("gpt", "snip:block=8", size="pico", recipe="classic", steps=8)
    assert all(torch.equal(mask[::8, ::8], want) for (_, mask), want in zip(masked(run.anatomy), expected, strict=True))


@pytest.mark.parametrize("name", ["rigl", "set", "snip"])
def test_probes_hold_of_masks_of_blocks(name: str) -> None:
    recording = new_recording("gpt", f"{name}:{BLOCK_SPARSE}", size="pico", recipe="classic", steps=8)
    recording.train(8)
    probes = recording.probes()
    wrong = {"dead", "dead_moved", "connections_changed", "off_schedule", "topology_changed", "off_initial"}
    assert not any(value for key, value in probes.items() if key.partition(".")[2] in wrong)


def test_what_does_not_fit_is_refused_with_what_does():
    with pytest.raises(ValueError, match=r"blocks of 48 do not divide .* are divided by 32 and"):
        new_run("gpt", "rigl:block=48", size="pico", recipe="classic", steps=8)
    with pytest.raises(ValueError, match="before what wraps its layers"):
        new_run("gpt", f"int8_mixed+rigl:{BLOCK_SPARSE}", size="pico", recipe="classic", steps=8)
