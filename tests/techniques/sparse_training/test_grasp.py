"""GraSP: its Hessian-gradient product against finite differences, and under fused attention."""

import pytest
import torch

from suite.loop.run import Run
from techniques.shared.sparse.masks import masked
from techniques.sparse_training.grasp.technique import hessian_gradient
from tests.runs import new_run


def running(settings: str = "", baseline: str = "gpt", steps: int = 8, recipe: str = "classic") -> Run:
    return new_run(baseline, f"grasp{settings}", size="pico", recipe=recipe, steps=steps)


def network(seed: int = 0):
    """Weights float64 and a loss of them."""
    generator = torch.Generator().manual_seed(seed)
    inputs, first, second = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((9, 4), (4, 5), (5, 2))
    )

    def loss(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return (inputs @ one).tanh().matmul(two).exp().mean()

    return [first, second], loss


def gradients(weights, loss):
    leaves = [each.clone().requires_grad_() for each in weights]
    return torch.autograd.grad(loss(*leaves), leaves)


def test_product_is_the_gradients_change_along_itself():
    weights, loss = network()
    leaves = [each.clone().requires_grad_() for each in weights]
    products = hessian_gradient(loss(*leaves), leaves)
    along, step = gradients(weights, loss), 1e-5
    ahead = gradients([each + step * g for each, g in zip(weights, along, strict=True)], loss)
    behind = gradients([each - step * g for each, g in zip(weights, along, strict=True)], loss)
    for product, one, other in zip(products, ahead, behind, strict=True):
        torch.testing.assert_close(product, (one - other) / (2 * step), rtol=1e-6, atol=1e-8)


def test_fused_attention_has_a_second_derivative_too():
    """The modern recipe's fused kernels have none; their choice is that of the eager ones but for rounding."""
    own, fused = (masked(running(":sparsity=0.5", recipe=recipe).anatomy) for recipe in ("classic", "modern"))
    same = sum(int((mask == other).sum()) for (_, mask), (_, other) in zip(own, fused, strict=True))
    assert same > 0.99 * sum(mask.numel() for _, mask in own)


def test_a_loss_without_a_temperature_is_refused():
    with pytest.raises(ValueError, match="no function of logits alone"):
        running(baseline="mae")
