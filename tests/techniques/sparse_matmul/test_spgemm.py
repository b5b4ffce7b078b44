"""Products without zeros against masked dense ones, in every layout and type, and the crossover study."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from techniques.shared.sparse.masks import MASK, attach
from techniques.sparse_matmul.shared.pruned_products import PrunedLinear, largest
from techniques.sparse_matmul.spgemm import study
from tests.runs import new_run


@pytest.mark.parametrize("dataflow", ["library", "outer"])
@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(12, 9), lambda: Conv1D(9, 12), lambda: nn.Linear(12, 9, bias=False)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_output_and_gradients_are_those_of_the_masked_layer(make, dataflow, dtype):
    torch.manual_seed(0)
    inner = make().to(dtype)
    attach(inner, largest(inner.weight, 0.7))
    layer, x = PrunedLinear(inner, dataflow), torch.randn(2, 5, 12, dtype=dtype, requires_grad=True)
    matrix = inner.weight.T if isinstance(inner, Conv1D) else inner.weight
    expected, d_out = F.linear(x, matrix, inner.bias), torch.randn(2, 5, 9, dtype=dtype)
    tolerance = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(layer(x), expected, **tolerance)
    ours = torch.autograd.grad(layer(x), (x, layer.weight), d_out)
    theirs = torch.autograd.grad(expected, (x, inner.weight), d_out)
    torch.testing.assert_close(ours[0], theirs[0], **tolerance)
    torch.testing.assert_close(ours[1], theirs[1] * inner.get_buffer(MASK), **tolerance)


@pytest.mark.parametrize("dataflow", ["library", "outer"])
def test_under_autocast_products_are_of_the_narrowed_numbers_in_full_sums(dataflow):
    """Also where backward runs under it: no library multiplies sparse matrices of 16 bits on a CPU."""
    torch.manual_seed(0)
    inner = nn.Linear(12, 9)
    attach(inner, largest(inner.weight, 0.7))
    layer, x = PrunedLinear(inner, dataflow), torch.randn(5, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        ours = torch.autograd.grad(y, (x, layer.weight), torch.ones_like(y))
        expected = F.linear(x, inner.weight, inner.bias)
        theirs = torch.autograd.grad(expected, (x, inner.weight), torch.ones_like(expected))
    assert y.dtype == torch.bfloat16 and ours[1].dtype == torch.float32
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(ours[1], theirs[1] * inner.get_buffer(MASK), rtol=2e-2, atol=2e-2)


def test_a_layer_without_a_connection_in_a_row_gives_its_bias():
    inner = nn.Linear(4, 3)
    attach(inner, torch.tensor([[True] * 4, [False] * 4, [True] * 4]))
    y = PrunedLinear(inner, "library")(torch.randn(2, 4))
    torch.testing.assert_close(y[:, 1], inner.bias[1].expand(2))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"sparsity 0\.99 leaves none of the 9 weights"):
        largest(torch.ones(3, 3), 0.99)
    with pytest.raises(ValueError, match="put this before what wraps its layers"):
        new_run("gpt", "layerscale+spgemm", size="pico", recipe="classic", steps=1)
    with pytest.raises(ValueError, match="cannot be stacked"):
        new_run("gpt", "snip+spgemm", size="pico", recipe="classic", steps=1)


def test_the_study_counts_and_finds_a_crossover(monkeypatch):
    monkeypatch.setattr(study, "SIZES", (16,))
    drawn = {(16, density): study.uniform(16, density) for density in (0.1, 0.5)}
    table = study.operations(drawn)
    for row, each in zip(table.rows, drawn.values(), strict=True):
        made = sum(int((each[:, k] != 0).sum()) * int((each[k] != 0).sum()) for k in range(16))
        assert row[2:4] == (made, 16**3) and row[5] < row[6]
    taken = study.seconds_of(drawn[16, 0.1])
    assert len(taken) == len(study.WAYS) and min(taken) > 0
    monkeypatch.setattr(study, "MOST_PRODUCTS", 1)
    assert [each is None for each in study.seconds_of(drawn[16, 0.1])] == [False, False, True, False, False]
    rows = [(16, 0.1, 1.0, 1.0, 9.0, 1.0, 2.0), (16, 0.4, 4.0, 1.0, 9.0, 2.0, 2.0)]
    ((size, mkl, *others),) = study.crossover(rows).rows
    assert size == 16 and others == [None, None, pytest.approx(0.4)]
    assert mkl == pytest.approx(0.2)  # halfway in logarithms: half as long at 0.1, twice as long at 0.4


def test_the_crossover_is_drawn_for_each_size():
    rows = [(n, d, *(d * k for k in (1.0, 2.0, 9.0, 0.5)), 0.1) for n in (16, 32) for d in (0.03, 0.3)]
    figure = study.plot([study.StudyTable("seconds", ("size", "density", *study.WAYS), rows)])
    assert [axes.get_title() for axes in figure.axes] == ["16 x 16", "32 x 32"]
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert lines[0].get_xdata()[0] == pytest.approx(0.1)
