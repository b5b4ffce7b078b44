"""ReZero against its equation written out on torch's own multi-head attention, and where it can and cannot stand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.model.anatomy import anatomy
from techniques.initialization.rezero.technique import ReZero
from techniques.shared.residual import norms, scaled_branches
from tests.model.further_models import further_run
from tests.runs import new_run

SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 2}
STEPS = 8


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**SIZES, class_token=False, global_pool="avg").double().eval()


def images(step: int = 0) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def with_residual_weights() -> VisionTransformer:
    run: Any = SimpleNamespace(trial=lambda model: model(images()))
    return ReZero().model(vit(), run).double()  # type: ignore[return-value]


def equation(weights: VisionTransformer, residual: list[Tensor], pictures: Tensor) -> Tensor:
    """Equation 1 with the weights of a plain model; attention is torch's own."""
    x = weights.patch_embed(pictures) + weights.pos_embed
    for block, a in zip(weights.blocks, residual, strict=True):
        qkv, out = block.attn.qkv, block.attn.proj
        attended, _ = F.multi_head_attention_forward(
            *[x.transpose(0, 1)] * 3, 24, 2, qkv.weight, qkv.bias, None, None, False, 0.0, out.weight, out.bias
        )
        x = x + a * attended.transpose(0, 1)
        x = x + a * block.mlp.fc2(F.gelu(block.mlp.fc1(x)))
    return weights.head(x.mean(1))


def test_trains_as_the_equation_does() -> None:
    ours, plain = with_residual_weights(), vit()
    residual = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in plain.blocks]
    theirs = [*residual, *(p for name, p in plain.named_parameters() if "norm" not in name)]
    optimizers = [torch.optim.AdamW(parameters, lr=1e-2) for parameters in (ours.parameters(), theirs)]
    for step in range(STEPS):
        outputs = ours(images(step)), equation(plain, residual, images(step))
        torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
        for optimizer, output in zip(optimizers, outputs):
            optimizer.zero_grad()
            F.cross_entropy(output, torch.arange(4)).backward()
            optimizer.step()
    assert all(a.abs() > 1e-3 for a in residual)
    for block, a in zip(anatomy(ours).blocks, residual):
        assert {id(end.module.scale) for end in block.branches} == {id(block.branches[0].module.scale)}
        torch.testing.assert_close(block.branches[0].module.scale, a, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_at_the_start_the_model_is_its_embedding_and_its_head(baseline: str) -> None:
    run = new_run(baseline, "rezero", size="pico", recipe="classic")
    batch = run.data.held_out("test", 4)[0]
    run.model.eval()
    with torch.no_grad():
        whole = run.baseline.forward(run.model, batch).logits
        for stack in run.anatomy.stacks:
            for block in stack.blocks:
                block.module.forward = lambda x, *args, **kwargs: x
        assert torch.equal(run.baseline.forward(run.model, batch).logits, whole)


def test_the_warm_up_goes_unless_it_is_asked_for() -> None:
    recipe = Recipe(steps=100, batch_size=8, learning_rate=1e-3)
    assert ReZero().recipe(recipe).learning_rate_at(0) == pytest.approx(1e-3, rel=1e-3)
    assert ReZero(warmup=True).recipe(recipe) == recipe


@pytest.mark.parametrize("name", ["t5", "gemma2", "mixtral", "swinv2", "gptj"])
def test_trains_models_of_users(name: str) -> None:
    """With norms behind branches, three branches a block, a mixture of experts, parallel branches."""
    run = further_run(name, ReZero())
    assert not norms(run.anatomy)
    run.train(2)
    assert all(each.scale.abs() > 0 for each in scaled_branches(run.model).values())


@pytest.mark.parametrize("name", ["deit3", "cait", "xcit"])
def test_a_model_with_a_scale_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="learned scale already"):
        further_run(name, ReZero())
