"""Small models for the meters' tests, with attention written out, fused, or checkpointed."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm_1 = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Tied-embedding language model. ``checkpointed`` recomputes every block."""

    def __init__(
        self, fused: bool = False, checkpointed: bool = False, width: int = 32, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width, heads, fused) for _ in range(layers))
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(width))
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def tokens(batch: int = 4, length: int = 64) -> Tensor:
    return torch.arange(batch * length).view(batch, length) % 50


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """One step; nothing outlives it but the model and the optimizer."""
    optimizer.zero_grad()
    F.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
    optimizer.step()
