"""What recorded steps show of BitFit, beside full fine-tuning of the plain model at the same parameters.

Bias terms are taken as the baselines have them: the ``bias`` of a linear layer, a convolution or a layer norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy, out_features
from suite.reading.recording import Recording
from techniques.fine_tuning.bitfit.technique import BitFit
from techniques.fine_tuning.shared.tuning_probes import (
    at_the_start_and_in_the_middle,
    different_at_start,
    heads_in,
    trained_numbers,
    tuning_probes,
)
from techniques.shared.plain import apart, filled, gradients_of, outputs_of, plain_model

OF_ITS_BASELINES = True  # whose blocks have a bias in every layer and norm
records = at_the_start_and_in_the_middle


def probes(recording: Recording, own: BitFit) -> Mapping[str, float]:
    """What :func:`tuning_probes` says, and ``different_at_start``: outputs other than the pre-trained model's;
    ``block_biases``: numbers that are trained in the blocks, over the sum of (7 + r) d; ``gradient_roundings``: of the
    step's gradients from full fine-tuning's; ``key_biases_count``: how far outputs move, of the largest, in float64,
    where the keys' biases move by 1."""
    plain, trace = plain_model(recording), recording.trace
    blocks = anatomy(plain).every_block
    bases = {id(module.bias) for module in plain.modules() if isinstance(getattr(module, "bias", None), Tensor)}
    terms = {name for name, parameter in plain.named_parameters() if id(parameter) in bases}
    expected = terms | heads_in(plain)
    paths = tuple(f"{block.path}." for block in blocks)
    hidden = [out_features(next(part.module for part in block.mlp_linears)) for block in blocks]
    formula = sum(7 * block.width + neurons for block, neurons in zip(blocks, hidden, strict=True))
    in_blocks = [name for name in trace.after.parameters if name.startswith(paths)]
    result = {
        **tuning_probes(recording, plain, expected),
        "different_at_start": different_at_start(recording, plain),
        "block_biases": trained_numbers(trace, in_blocks) / formula,
    }
    gradients = gradients_of(recording, trace, filled(plain, trace.before.parameters))
    ours = trace.of("backward")[0].gradients
    result["gradient_roundings"] = apart(ours, {name: gradients[name] for name in expected})
    moved = copy.deepcopy(plain)
    with torch.no_grad():
        for biases in _key_biases(moved):
            biases += 1
    still, otherwise = (outputs_of(recording, trace, model, torch.float64) for model in (plain, moved))
    result["key_biases_count"] = ((otherwise - still).abs().max() / still.abs().max()).item()
    return result


def _key_biases(plain: nn.Module) -> Iterator[Tensor]:
    for block in anatomy(plain).every_block:
        if fused := block.projections.get("qkv"):
            yield fused.module.bias.chunk(3)[1]  # type: ignore[operator]
        else:
            yield block.projections["key"].module.bias  # type: ignore[misc]
