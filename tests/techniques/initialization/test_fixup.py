"""Fixup against its three rules written out on torch's own multi-head attention, and where it can and cannot stand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from suite.entries.spelling import build
from suite.model.anatomy import anatomy
from suite.record.job import Setting
from techniques.initialization.fixup.technique import Fixup, factor
from techniques.initialization.shared.depth import deep_run, first_step, gradient_step
from tests.model.further_models import further_run
from tests.runs import new_run

DEPTH, WIDTH, HEADS = 3, 24, 2
STEPS = 8


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    return VisionTransformer(**sizes, class_token=False, global_pool="avg").double().eval()


def images(step: int = 0) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


class Rules(nn.Module):
    """A ViT by the paper's rules, from a plain one's weights."""

    def __init__(self, plain: VisionTransformer) -> None:
        super().__init__()
        self.patches, self.positions, self.blocks = plain.patch_embed, plain.pos_embed, nn.ModuleList()
        for block in plain.blocks:
            own = nn.ParameterDict(
                {f"b{i}": torch.zeros(1) for i in range(5)} | {f"s{i}": torch.ones(1) for i in (0, 1)}
            )
            own["qkv"] = block.attn.qkv.weight.detach() * (2 * DEPTH) ** (-1 / 6)
            own["out"] = torch.zeros(WIDTH, WIDTH)
            own["fc1"] = block.mlp.fc1.weight.detach() * (2 * DEPTH) ** (-1 / 2)
            own["fc2"] = torch.zeros(WIDTH, 4 * WIDTH)
            self.blocks.append(own)
        self.head = nn.Linear(WIDTH, 5)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures) + self.positions
        for p in self.blocks:
            q, k, v = ((x + p["b0"]) @ p["qkv"].T).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            mixed = ((q @ k.mT) / math.sqrt(WIDTH // HEADS)).softmax(-1) @ v
            x = x + p["s0"] * ((mixed.transpose(1, 2).flatten(2) + p["b1"]) @ p["out"].T)
            hidden = F.gelu((x + p["b2"]) @ p["fc1"].T + p["b3"])
            x = x + p["s1"] * ((hidden + p["b4"]) @ p["fc2"].T)
        return self.head(x.mean(1))


def test_trains_as_the_rules_do() -> None:
    run: Any = SimpleNamespace(trial=lambda model: model(images()))
    ours, theirs = Fixup().model(vit(), run).double(), Rules(vit()).double()
    counts = [sum(p.numel() for p in each.parameters()) for each in (ours, theirs)]
    assert counts[0] == counts[1]
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (ours, theirs)]
    for step in range(STEPS):
        outputs = ours(images(step)), theirs(images(step))
        torch.testing.assert_close(*outputs, rtol=1e-7, atol=1e-9)
        for optimizer, output in zip(optimizers, outputs):
            optimizer.zero_grad()
            F.cross_entropy(output, torch.arange(4)).backward()
            optimizer.step()
    assert outputs[0].abs().max() > 0.1


@given(st.integers(1, 10**5), st.integers(2, 8))
def test_the_factor_makes_a_step_of_all_branches_together_one_of_any_depth(branches: int, layers: int) -> None:
    """Section 2: each branch is to give 1/L of the update, and its m - 1 layers shrink it twice, forth and back."""
    assert factor(branches, layers) ** (2 * layers - 2) == pytest.approx(1 / branches)


@pytest.mark.parametrize("depth", [2, 8, 32])
def test_the_first_step_changes_the_function_equally_at_any_depth(depth: int) -> None:
    setting = Setting(baseline="gpt", size="pico", recipe="classic", steps=8)
    for step in (first_step, gradient_step):
        shallow, deep = (step(deep_run(setting, build("fixup"), blocks)) for blocks in (1, depth))
        assert deep == pytest.approx(shallow, rel=1e-6) and shallow > 0


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_the_head_has_a_matrix_of_its_own_and_the_embedding_is_as_it_was(baseline: str) -> None:
    plain, run = (new_run(baseline, stack, size="pico") for stack in ("baseline", "fixup"))
    assert all(not head.module.weight.any() for head in run.anatomy.head)
    for one, other in zip(plain.anatomy.embeddings, run.anatomy.embeddings, strict=True):
        assert torch.equal(one.module.weight, other.module.weight)


@pytest.mark.parametrize("name", ["t5", "gemma2", "gptj", "bloom"])
def test_trains_models_of_users(name: str) -> None:
    """With three branches a block, gated MLPs, norms behind branches, parallel branches, attention fused by head."""
    run = further_run(name, Fixup())
    branches = sum(len(block.branches) for block in anatomy(run.model).every_block)
    assert branches == {"t5": 4 * 2 + 4 * 3}.get(name, 8)
    run.train(3)


def test_a_mixture_of_experts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp ends in several experts"):
        further_run("mixtral", Fixup())


@pytest.mark.parametrize("name", ["swinv2", "eva02"])
def test_a_model_that_reads_weights_past_their_layers_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"reads the weight of .*qkv without calling it"):
        further_run(name, Fixup())


def test_a_model_with_a_scale_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="learned scale already"):
        further_run("deit3", Fixup())
