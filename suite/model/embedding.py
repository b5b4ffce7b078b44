"""Computes an embedding of whole examples: what a model's main stack makes of their tokens, on average.

A masked auto-encoder's encoder sees a part of the patches in training. As an encoder it sees them all (He et al., arXiv
2111.06377, section 4.3), and so it does here: transformers keeps the share that is hidden in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy
from suite.model.calls import Forward, undisturbed

HIDDEN_SHARE = "mask_ratio"


@torch.no_grad()
def embedded(model: nn.Module, forward: Forward) -> Tensor:
    """Returns the mean over the tokens of what the main stack's last block puts out, float32 [examples, width].

    ``forward`` passes the examples through ``model``, which is in evaluation mode meanwhile and stays as it was. Raises
    NoBlocks for a model without Transformer blocks, ValueError where the last block does not run.
    """
    outputs: list[Tensor] = []

    def note(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    last = anatomy(model).blocks[-1]
    with undisturbed(model), nothing_hidden(model), last.module.register_forward_hook(note):
        model.eval()
        forward()
    if not outputs:
        raise ValueError(f"{last.path} did not run, so that nothing is known of what it makes of the examples")
    return outputs[-1].float().mean(1)


@contextmanager
def nothing_hidden(model: nn.Module) -> Iterator[None]:
    """While active, a masked auto-encoder's encoder gets all patches."""
    configurations = {id(own): own for module in model.modules() if (own := getattr(module, "config", None))}
    hiding = [configuration for configuration in configurations.values() if hasattr(configuration, HIDDEN_SHARE)]
    shares = [getattr(configuration, HIDDEN_SHARE) for configuration in hiding]
    try:
        for configuration in hiding:
            setattr(configuration, HIDDEN_SHARE, 0.0)
        yield
    finally:
        for configuration, share in zip(hiding, shares, strict=True):
            setattr(configuration, HIDDEN_SHARE, share)
