"""Tells what recorded steps show of BitFit, beside full fine-tuning of the plain model at the same parameters.

Bias terms are taken as the baselines have them: the ``bias`` of a linear layer, a convolution or a layer norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from suite.model.anatomy import anatomy, out_features
from suite.reading.judged import judged
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


@judged(
    "elsewhere",
    "Bias terms and the output layer of a new task are trained, all of them, and nothing else is",
    "Section 3",
    id="only_biases_and_the_head",
)
@judged(
    "frozen_moved",
    "No weight of the pre-trained model moves by a bit",
    "Section 3",
    id="weights_are_frozen",
    note="the head of a new task aside",
)
@judged("at_rest", "The step moves every bias term", "Section 3", id="every_bias_moves")
@judged(
    "gradient_roundings",
    "The biases' gradients are those of full fine-tuning at the same parameters",
    "Section 3, by the chain rule",
    id="gradients_of_full_fine_tuning",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "different_at_start",
    "Before the first step the outputs are the pre-trained model's to the bit",
    "Section 3",
    id="starts_as_the_pretrained_model",
)
@judged(
    "key_biases_count",
    "The keys' biases change no output: they add the same number to all scores of a query",
    "Section 4, on figure 2: the keys' biases do not change",
    id="key_biases_do_nothing",
    at_most=1e-6,  # of the largest output, in float64 but for softmaxes that a model takes in float32
)
@judged(
    "rate",
    "Thirty times the learning rate of full fine-tuning",
    "This entry's choice; the authors' code trains at 1e-3",
    equals=30.0,
    tolerance=1e-6,
)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each trained number and none for a frozen one",
    "Follows from section 3: two moments in float32",
    id="state_for_what_trains",
    equals=8.0,
    kind="counted",
)
def probes(recording: Recording, own: BitFit) -> Mapping[str, float]:
    """Includes what :func:`tuning_probes` says. ``key_biases_count`` is how far outputs move where the keys' biases
    move by 1, of the largest, in float64. For a claim, ``block_biases`` is the numbers that are trained in the blocks,
    over the sum of (7 + r) d."""
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
