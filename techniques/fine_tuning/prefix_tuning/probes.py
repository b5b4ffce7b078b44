"""Tells what recorded steps show of prefix-tuning, beside the pre-trained model with another form of the same
attention.

Attention over a prefix and a text is a mean of the attentions over each, by the share s of the prefix (He et al., ICLR
2022, equation 7), where no key of the one meets a mask of the other:

    s softmax(q K_j') V_j + (1 - s) softmax(q K') V        s = sigmoid(logsumexp(q K_j') - logsumexp(q K'))
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy, in_features, is_linear, out_features
from suite.model.attention import AttentionFunction
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Values
from techniques.fine_tuning.prefix_tuning.technique import PrefixTuning, drop_mlp
from techniques.fine_tuning.shared.tuning_probes import at_the_start_and_in_the_middle as records
from techniques.fine_tuning.shared.tuning_probes import tuning_probes
from techniques.shared.plain import apart, outputs_of, plain_model

__all__ = ["probes", "records"]

OF_ITS_BASELINES = True  # whose blocks each compute attention once, in their order
INNER = ("source", "weight", "bias")


@judged(
    "kept_otherwise",
    "Without the MLP, the prefix that it made gives the same outputs to the bit",
    "Section 4.3",
    id="mlp_is_dropped",
)
@judged("elsewhere", "P' and the MLP get a gradient, and nothing else does", "Section 4.2", id="prefix_alone")
@judged("frozen_moved", "No pre-trained weight moves by a bit", "Section 4.2", id="model_is_frozen")
@judged("at_rest", "P' and the MLP move", "Section 4.3", id="prefix_is_trained")
@judged(
    "outputs_off",
    "In every layer, every query attends to the prefix and to what of the text it saw before",
    "Section 4.2, equation 3",
    id="attention",
    at_most=1e-12,  # of the largest output, in float64: some thousand roundings
)
@judged(
    "gradient_roundings",
    "The prefix is MLP(P'), with a tanh: gradients of P' and of the MLP are those that the chain rule gives",
    "Section 4.3",
    id="mlp",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged("rate", "The learning rate is that of full fine-tuning", "This entry's choice", equals=1.0, tolerance=1e-6)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each number of P' and the MLP, and none for the model",
    "follows from section 4.2",
    equals=8.0,
    kind="counted",
    note="two moments in float32",
)
@judged(
    "flops",
    "A forward pass costs l more keys in each layer, and the MLP once for all examples",
    "follows from section 4.2",
    id="longer_attention",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    note="B (2 T entries + 4 T (T + l) d L) FLOPs and 6 l d 512 L; eager attention",
)
def probes(recording: Recording, own: PrefixTuning) -> Mapping[str, float]:
    """Includes those of :func:`tuning_probes`. ``outputs_off`` is of the pre-trained model with the mean of attentions,
    relative to the largest, in float64. Claims read ``kept_parameters``, the prefix's once the MLP is dropped, over 2 L
    l d, and ``kept_share``, over the model's."""
    if not own.length:
        return {}
    run, trace = recording.run, recording.trace
    plain = plain_model(recording)
    parts = anatomy(plain)
    layers = [f"{block.attention.path}.prefix" for block in parts.blocks]
    expected = [f"{layers[0]}.inner.{name}" for name in INNER]
    expected += [f"{layer}.{name}" for layer in layers for name in ("weight", "bias")]
    tuned = tuning_probes(recording, plain, expected)
    flops = _flops_over_formula(recording, plain, own)

    with recording.at(trace.before.parameters):
        without_mlp = drop_mlp(copy.deepcopy(run.model))
        changed = outputs_of(recording, trace, without_mlp) != outputs_of(recording, trace, run.model)
        ours = outputs_of(recording, trace, run.model, torch.float64)
    added = sum(parameter.numel() for parameter in without_mlp.parameters()) - sum(
        parameter.numel() for parameter in plain.parameters()
    )

    values = {name: trace.before.parameters[name].double().requires_grad_() for name in expected}
    plain.double().requires_grad_(False)
    heads = parts.heads or 1
    with parts.attention(_mean_of_attentions(_prefixes(values, layers, heads))):
        outputs = run.baseline.forward(plain, trace.batch)
    loss = run.baseline.losses(outputs, trace.batch).mean()
    gradients = dict(zip(expected, torch.autograd.grad(loss, list(values.values())), strict=True))
    logits = outputs.logits.detach()
    return {
        **tuned,
        "kept_parameters": added / (2 * parts.depth * own.length * parts.width),
        "kept_share": added / sum(parameter.numel() for parameter in plain.parameters()),
        "kept_otherwise": int(changed.sum()),
        "outputs_off": ((ours - logits).abs().max() / logits.abs().max()).item(),
        "gradient_roundings": apart(trace.of("backward")[0].gradients, gradients),
        "flops": flops,
    }


def _prefixes(values: Values, layers: list[str], heads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the keys and values [heads, l, head_dim] of each layer."""
    source, inner, bias = (values[f"{layers[0]}.inner.{name}"] for name in INNER)
    hidden = (source @ inner.T + bias).tanh()
    for layer in layers:
        rows = hidden @ values[f"{layer}.weight"].T + values[f"{layer}.bias"]
        keys, own = (row.view(len(source), heads, -1).transpose(0, 1) for row in rows.chunk(2, dim=1))
        yield keys, own


def _mean_of_attentions(ahead: Iterator[tuple[Tensor, Tensor]]) -> AttentionFunction:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        keys, values = next(ahead)
        before, text = (scale * query @ tensor.transpose(-2, -1) for tensor in (keys, key))
        if causal:
            mask = torch.ones(text.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            text = text.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else text + mask
        share = torch.sigmoid(before.logsumexp(-1) - text.logsumexp(-1))[..., None]
        return share * (before.softmax(-1) @ values) + (1 - share) * (text.softmax(-1) @ value)

    return attention


def _flops_over_formula(recording: Recording, plain: nn.Module, own: PrefixTuning) -> float:
    """Returns the FLOPs of a forward pass over B (2 T entries + 4 T (T + l) d L), and those of the MLP, which a batch
    does not multiply: each layer makes its own prefix, from P' on."""
    batch, parts = recording.trace.batch, anatomy(plain)
    with FlopCounter() as counter, torch.no_grad():
        recording.run.baseline.forward(recording.run.model, batch)
    rows, count = batch["input_ids"].shape
    entries = sum(in_features(module) * out_features(module) for module in plain.modules() if is_linear(module))
    attention = 4 * count * (count + own.length) * parts.width * parts.depth
    mlp = parts.depth * own.length * 2 * (3 * parts.width * own.hidden)
    return counter.total / (rows * (2 * count * entries + attention) + mlp)
