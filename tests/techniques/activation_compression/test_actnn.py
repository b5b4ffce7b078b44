"""ActNN's saved activations: what is packed and what never is, once each, in exactly so many bytes."""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.meters.activations import SavedActivations
from techniques.activation_compression.shared.saved_tensors import Kept, Packing, Saved
from techniques.shared.packed import packed_bytes, packed_rows


def packing(model: nn.Module, bits: int = 4) -> tuple[Packing, list[Saved]]:
    """All in ``bits``, and what was packed."""
    seen: list[Saved] = []
    generator = torch.Generator().manual_seed(0)

    def keep(saved: Saved) -> Kept:
        seen.append(saved)
        return packed_rows(saved.numbers.view(1, -1), [bits], generator)

    return Packing(model, keep), seen


def saved_by(model: nn.Module, *arguments: Tensor) -> tuple[int, list[Saved], Tensor]:
    hooks, seen = packing(model)
    with SavedActivations(model) as meter, hooks:
        output = model(*arguments)
    return meter.saved_bytes, seen, output


class Shared(nn.Module):
    """One tensor goes into three layers, of one also as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        return first(x).sum() + second(x.view(4, 2, 8)).sum() + third(x.unflatten(0, (2, 4))).sum()


def test_a_storage_that_several_save_is_packed_once() -> None:
    model, x = Shared(), (torch.randn(8, 8, requires_grad=True) * 2)
    size, seen, output = saved_by(model, x)
    assert len(seen) == 1 and size == packed_bytes(1, 64, 4)
    output.backward()
    gradients = [each.weight.grad for each in model.layers]
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


def test_what_is_too_few_bits_for_one_reader_is_not_what_it_gets() -> None:
    """A product saves x first; of the softmax that saves it again the gradient is exponential in it."""
    layer, seen = nn.Linear(8, 8, bias=False), list[Saved]()

    def keep(saved: Saved) -> Kept:
        seen.append(saved)
        return packed_rows(saved.numbers.view(1, -1), [8 if saved.sensitive else 1], torch.Generator().manual_seed(0))

    x = torch.randn(1, 2, 4, 8, requires_grad=True) * 1.0
    with Packing(layer, keep):
        outputs = [layer(x), F.scaled_dot_product_attention(x, x, x), layer(x)]
    assert [(saved.function, saved.sensitive) for saved in seen[:2]] == [
        ("linear", False),
        ("scaled_dot_product_attention", True),
    ]
    assert [saved.function for saved in seen].count("linear") == 1, "x in 8 bits is good for the last product"
    assert all(output.requires_grad for output in outputs)


def test_a_storage_that_changes_or_dies_is_packed_anew() -> None:
    layer = nn.Linear(64, 1, bias=False)
    hooks, seen = packing(layer, 8)
    with hooks:
        outputs = []
        for shift in range(5):  # each dies, and the next may stand where it stood
            outputs.append(layer(torch.full((1, 64), float(shift), requires_grad=True) * 1.0))
        x = torch.zeros(1, 64, requires_grad=True) * 1.0
        outputs.append(layer(x))
        x.add_(7.0)
        outputs.append(layer(x))
    expected = [0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 7.0]
    for output, value in zip(outputs, expected, strict=True):
        (gradient,) = torch.autograd.grad(output.sum(), layer.weight)
        torch.testing.assert_close(gradient, torch.full((1, 64), value), rtol=0, atol=0.05)
    assert len(seen) == 7


def test_views_come_back_as_they_were() -> None:
    """Transposed, permuted, a part of a storage; an expanded one stays whole."""
    leaf = torch.randn(6, 4, 10, requires_grad=True)
    for of in (
        lambda base: base,
        lambda base: base.transpose(0, 2),
        lambda base: base.permute(1, 0, 2),
        lambda base: base[1:3, :, ::2],
        lambda base: base[0],
    ):
        hooks, seen = packing(nn.Module(), 8)
        view = of(leaf * 1.0)
        factor = torch.ones(view.shape, requires_grad=True)
        with hooks:
            output = view * factor
        output.sum().backward()
        torch.testing.assert_close(factor.grad, view.detach(), rtol=0, atol=0.05)
        assert [each.numbers.numel() for each in seen] == [view.numel()]
    hooks, seen = packing(nn.Module())
    factor = torch.ones(3, 5, requires_grad=True)
    with hooks:
        output = leaf[:3, :1, 0].mul(1.0).expand(3, 5) * factor
    output.sum().backward()
    assert not seen and torch.equal(factor.grad, leaf[:3, :1, 0].expand(3, 5))


def test_statistics_logsumexp_and_integers_stay_whole() -> None:
    """Gradients through what fused attention saves at 8 bits are nearly exact; at 2 its exponentials would explode."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.norm(self.table(tokens)).view(2, 6, 2, 8).transpose(1, 2)
            return F.scaled_dot_product_attention(x * 2, x * 3, x).sum(-1)

    model, tokens = Model(), torch.randint(11, (2, 6))
    _, seen, _ = saved_by(model, tokens)
    shapes = Counter(each.function for each in seen)
    assert shapes["scaled_dot_product_attention"] == 4 and shapes["layer_norm"] == 1 and "embedding" not in shapes
    assert {each.numbers.numel() for each in seen} == {2 * 6 * 16}
    assert all(each.sensitive == (each.function == "scaled_dot_product_attention") for each in seen)


def test_masks_take_a_bit_each_and_lose_nothing() -> None:
    x = torch.randn(40, 30, requires_grad=True)
    model = nn.Module()
    torch.manual_seed(3)
    exact = F.dropout(x * 1.0, 0.3)
    hooks, _ = packing(model)
    torch.manual_seed(3)
    with SavedActivations(model) as meter, hooks:
        ours = F.dropout(x * 1.0, 0.3)
    assert torch.equal(ours, exact) and meter.saved_bytes == 40 * 30 // 8 + 4
    assert torch.equal(*(torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (ours, exact)))
    where = torch.rand(40, 30) < 0.5
    with SavedActivations(model) as meter, packing(model)[0]:
        masked = torch.where(where, x, 2 * x)
    assert meter.saved_bytes <= 40 * 30 // 8 + 1 + 4
    (gradient,) = torch.autograd.grad(masked.sum(), x)
    assert torch.equal(gradient, torch.where(where, 1.0, 2.0))


def test_what_recomputation_keeps_stays_whole() -> None:
    """Gradients inside a recomputed segment are exact."""
    layer, x = nn.Linear(16, 16), torch.randn(4, 16, requires_grad=True)
    hooks, seen = packing(layer)
    with hooks:
        output = torch.utils.checkpoint.checkpoint(lambda h: layer(h).tanh(), x * 1.0, use_reentrant=False)
    output.sum().backward()
    assert not seen
    ours = layer.weight.grad.clone()
    layer.weight.grad = None
    layer(x).tanh().sum().backward()
    assert torch.equal(ours, layer.weight.grad)
