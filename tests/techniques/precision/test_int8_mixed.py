"""int8 products beside integers in numpy and beside torchao's layer, in training too; and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from suite.model.anatomy import weight_matrix
from techniques.fine_tuning.lora.technique import LoRA
from techniques.precision.int8_mixed.technique import (
    LONGEST_SUM,
    Int8Linear,
    Int8Mixed,
    Products,
    int8_product,
    quantized,
)
from tests.runs import new_run

SWITCHES = [Products(o, i, w, s) for o in (0, 1) for i in (0, 1) for w in (0, 1) for s in ("row", "tensor")]  # type: ignore[arg-type]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor, scales: str = "row") -> Any:
    """The numbers that integers stand for, by numpy."""
    values = x.detach().numpy()
    largest = np.abs(values).max(axis=1, keepdims=True) if scales == "row" else np.abs(values).max()
    step = np.float32(largest) / np.float32(127)
    return np.rint(values / step).astype(np.int64) * step.astype(np.float64)


def product(a: Tensor, b: Tensor, int8: bool, scales: str = "row") -> Tensor:
    if not int8:
        return a.double() @ b.double().T
    return torch.from_numpy(rounded(a) @ rounded(b, scales).T)


def close(ours: Tensor | None, expected: Tensor) -> None:
    assert ours is not None
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True], ids=["Linear", "Conv1D"])
@pytest.mark.parametrize("products", SWITCHES, ids=str)
def test_each_product_is_the_one_of_the_rounded_operands(products: Products, transposed: bool) -> None:
    layer = Conv1D(6, 9) if transposed else nn.Linear(9, 6)
    nn.init.normal_(layer.bias)
    x, g = drawn(2, 5, 9).requires_grad_(), drawn(2, 5, 6, seed=1)
    y = Int8Linear(layer, products)(x)
    y.backward(g)
    flat_x, flat_g, w = x.detach().view(-1, 9), g.view(-1, 6), weight_matrix(layer).detach()
    close(y.view(-1, 6), product(flat_x, w, products.output, products.weight_scale) + layer.bias)
    assert x.grad is not None and layer.weight.grad is not None
    close(x.grad.view(-1, 9), product(flat_g, w.T, products.grad_input, products.weight_scale))
    of_weight = layer.weight.grad.T if transposed else layer.weight.grad
    close(of_weight, product(flat_g.T, flat_x.T, products.grad_weight))
    close(layer.bias.grad, flat_g.double().sum(0))


def test_sums_of_the_largest_integers_are_exact() -> None:
    one = torch.full((2, LONGEST_SUM), 1.0)
    one[1] = -1.0
    sums = int8_product(one, one[:1])
    torch.testing.assert_close(sums, torch.tensor([[1.0], [-1.0]]) * LONGEST_SUM)
    with pytest.raises(ValueError, match=f"sums of {LONGEST_SUM} products of int8, not of {LONGEST_SUM + 1}"):
        int8_product(torch.ones(1, LONGEST_SUM + 1), torch.ones(1, LONGEST_SUM + 1))


def test_integers_are_symmetric_and_zeros_stay_zero() -> None:
    integers, scale = quantized(torch.tensor([[-3.0, 3.0, 1.5], [0.0, 0.0, 0.0], [1e-44, -1e-44, 0.0]]))
    assert integers.dtype == torch.int8 and scale.dtype == torch.float32
    assert integers[0].tolist() == [-127, 127, 64] and not integers[1].any()
    assert not int8_product(torch.zeros(2, 3), torch.ones(4, 3)).any()
    assert int8_product(torch.ones(0, 3), torch.ones(4, 3)).shape == (0, 4)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_spoils_its_row_and_no_other(value: str) -> None:
    a = drawn(3, 5)
    a[1, 2] = float(value)
    y = int8_product(a, drawn(4, 5, seed=1))
    assert not y[1].isfinite().any() and y[[0, 2]].isfinite().all()


def test_all_three_products_by_rows_are_torchaos_layer() -> None:
    peer = pytest.importorskip("torchao.prototype.quantized_training.int8_mixed_precision")
    config = peer.Int8MixedPrecisionTrainingConfig(output=True, grad_input=True, grad_weight=True)
    theirs = peer.Int8MixedPrecisionTrainingLinear(16, 24, config=config)
    plain = nn.Linear(16, 24)
    plain.load_state_dict(theirs.state_dict())
    ours = Int8Linear(plain, Products(True, True, True, "row"))
    gradients = []
    for layer in (ours, theirs):
        x = drawn(8, 16).requires_grad_()
        y = layer(x)
        y.backward(drawn(8, 24, seed=1))
        gradients.append([y, x.grad, layer.weight.grad, layer.bias.grad])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_adapted_layer_computes_the_layer_in_int8_and_its_update_as_before() -> None:
    run = new_run("gpt", LoRA(), size="pico", steps=4)
    model = Int8Mixed().model(run.model, run)
    inside = [path for path, each in model.named_modules() if isinstance(each, Int8Linear)]
    assert any(path.endswith("c_attn.linear") for path in inside)
    assert math.isfinite(run.train(1)[0])


def test_a_layer_that_computes_in_its_own_way_is_refused() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    run = new_run("vit", size="pico")
    path, linear = run.anatomy.linears[0]
    run.anatomy.replace(path, Doubled(linear.in_features, linear.out_features))
    with pytest.raises(ValueError, match=f"{path} is a Doubled, which computes in its own way: leave int8_mixed out"):
        Int8Mixed().model(run.model, run)


# the kernel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (129, 5, 131), (7, 130, 260), (0, 3, 4)])
def test_the_kernel_has_torchs_bits(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    kernel = pytest.importorskip("techniques.precision.int8_mixed.kernel")
    (p, s), (q, t) = quantized(drawn(m, k)), quantized(drawn(n, k, seed=1))
    expected = ((p.long() @ q.long().T).float() * s * t.T).to(dtype)
    assert torch.equal(kernel.scaled_product(p, q, s, t, dtype), expected)


def test_the_kernels_flops_are_counted() -> None:
    kernel = pytest.importorskip("techniques.precision.int8_mixed.kernel")
    from suite.meters.flops import FlopCounter

    (p, s), (q, t) = quantized(drawn(3, 5)), quantized(drawn(4, 5))
    with FlopCounter() as counter:
        kernel.scaled_product(p, q, s, t, torch.float32)
    assert counter.total == 2 * 3 * 4 * 5
