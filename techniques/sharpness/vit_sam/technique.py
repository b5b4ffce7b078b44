"""Runs SAM on a vision transformer trained from scratch without strong augmentation, and measures the flatness that it
is to bring.

Chen, Hsieh & Gong, "When Vision Transformers Outperform ResNets without Pre-training or Strong Data Augmentations"
(ICLR 2022, arXiv 2106.01548): the update is SAM's over AdamW, with a larger ball than for convolutional networks. Their
explanation is measured at the end of the run: the Hessian's largest eigenvalue falls, and fewer units of the first MLPs
are active.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.model.anatomy import Block
from techniques.sharpness.shared.ascent import SharpnessAware
from techniques.sharpness.shared.sharpness import sharpness


@contextmanager
def active_shares(blocks: Sequence[Block]) -> Iterator[list[float]]:
    """While active, every forward pass adds one number a block: the share of its hidden MLP units above zero.

    GELU and ReLU are positive exactly where what goes in is, so the first MLP layer's output tells.
    """
    shares: list[float] = []

    def count(_: nn.Module, __: object, out: Tensor) -> None:
        shares.append((out > 0).float().mean().item())

    handles = [block.mlp_linears[0].module.register_forward_hook(count) for block in blocks]
    try:
        yield shares
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class VitSam(SharpnessAware):
    """Runs SAM with the paper's radius for ViT-B/16; a rho of 0 is the reference with the same probes.

    ``adaptive`` is ASAM, whose radii are larger: 0.5 to 2.
    """

    rho: float = 0.2

    def sites(self, run: Run) -> Mapping[str, Site]:
        if not all(block.mlp_linears for block in run.anatomy.blocks):
            raise ValueError(
                "vit_sam counts the active units of each block's MLP, and here MLPs have no linear layers (do experts "
                "hold their weights together?); take another model, or sam"
            )
        return super().sites(run)

    def probes(self, run: Run) -> Mapping[str, float]:
        """Computes `sharpness`, and on the same batch the ``active_share`` of hidden MLP units in all blocks and
        ``active_share_first`` in the first quarter of them."""
        with active_shares(run.anatomy.blocks) as shares:
            measured = sharpness(run)
        shares = shares[: run.anatomy.depth]  # those of the pass at the weights themselves
        first = shares[: max(1, len(shares) // 4)]
        return measured | {
            "active_share": sum(shares) / len(shares),
            "active_share_first": sum(first) / len(first),
        }
