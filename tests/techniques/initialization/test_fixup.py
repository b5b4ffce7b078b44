"""Fixup against its three rules written out."""

import math

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from techniques.initialization.fixup.technique import Fixup
from tests.techniques.written_out import DEPTH, HEADS, WIDTH, assert_they_train_alike, trial_run, vit


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
    ours, theirs = Fixup().model(vit(), trial_run()).double(), Rules(vit()).double()
    assert_they_train_alike(ours, ours.parameters(), theirs, theirs.parameters())
