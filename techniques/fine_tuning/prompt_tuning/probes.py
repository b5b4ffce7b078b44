"""What recorded steps show of prompt tuning, beside the pre-trained model that reads the longer rows as its own call
allows: embeddings in place of tokens, and the positions of the text for the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy, in_features, is_linear, out_features
from suite.reading.recording import Recording
from techniques.fine_tuning.prompt_tuning.technique import PromptTuning
from techniques.fine_tuning.shared.tuning_probes import at_the_start_and_in_the_middle as records
from techniques.fine_tuning.shared.tuning_probes import trained_numbers, tuning_probes
from techniques.shared.plain import apart, outputs_of, plain_model

__all__ = ["probes", "records"]

OF_ITS_BASELINES = True  # which say the position of each token, and run every layer on every token
PROMPT = "prompt"


def probes(recording: Recording, own: PromptTuning) -> Mapping[str, float]:
    """Those of :func:`tuning_probes`; ``prompt_parameters``: what is trained, over l d; ``not_embeddings``: vectors
    of the prompt at the start that are no token's; ``distinct``: different ones among them, over as many as are
    expected of draws from the vocabulary; ``outputs_off``: how far the logits are from the pre-trained model's for
    the longer row, behind the prompt, of the largest, in float64; ``gradient_roundings``: of the prompt's gradient
    from that model's; ``flops``: of a forward pass, over the formula for rows that are longer by l."""
    if not own.length:
        return {}
    run, trace = recording.run, recording.trace
    plain = plain_model(recording)
    table: Any = plain.get_input_embeddings()  # type: ignore[operator]
    start = recording.traces[0].before.parameters.get(PROMPT, torch.zeros(1, 1))
    if start.shape[1] != table.embedding_dim:
        start = start.new_zeros(own.length, table.embedding_dim)
    known = (start[:, None] == table.weight[None]).all(-1).any(1)
    distinct = len(start.unique(dim=0)) / _distinct(table.num_embeddings, own.length)
    tuned = tuning_probes(recording, plain, [PROMPT])
    trained = trained_numbers(trace, [PROMPT]) / (own.length * table.embedding_dim)
    flops = _flops_over_formula(recording, plain, own.length)

    plain.double().requires_grad_(False)
    prompt = trace.before.parameters[PROMPT].double().requires_grad_()
    outputs = _read(plain, prompt, trace.batch)
    loss = run.baseline.losses(outputs, trace.batch).mean()
    (gradient,) = torch.autograd.grad(loss, prompt)
    with recording.at(trace.before.parameters):
        ours = outputs_of(recording, trace, run.model, torch.float64)
    return {
        **tuned,
        "prompt_parameters": trained,
        "not_embeddings": int((~known).sum()),
        "distinct": distinct,
        "outputs_off": _distance(ours, outputs.logits.detach()),
        "gradient_roundings": apart(trace.of("backward")[0].gradients, {PROMPT: gradient}),
        "flops": flops,
    }


def _read(plain: nn.Module, prompt: Tensor, batch: Batch) -> Any:
    """What the model says of a text behind the prompt."""
    tokens = batch["input_ids"]
    table: Any = plain.get_input_embeddings()  # type: ignore[operator]
    rows, count = tokens.shape
    everything = torch.cat([prompt.expand(rows, *prompt.shape), table(tokens)], dim=1)
    positions = torch.cat([torch.zeros(len(prompt), dtype=torch.int64), torch.arange(count)])
    seen = torch.ones(rows, len(positions), dtype=torch.int64)
    outputs = plain(inputs_embeds=everything, position_ids=positions[None], attention_mask=seen)
    return SimpleNamespace(logits=outputs.logits[:, len(prompt) :])


def _distance(ours: Tensor, expected: Tensor) -> float:
    if ours.shape != expected.shape:
        return torch.inf
    return ((ours - expected).abs().max() / expected.abs().max()).item()


def _distinct(vocabulary: int, draws: int) -> float:
    """Different tokens among ``draws``, on average: all, or with replacement where the vocabulary is too small."""
    return draws if draws <= vocabulary else vocabulary * (1 - (1 - 1 / vocabulary) ** draws)


def _flops_over_formula(recording: Recording, plain: nn.Module, length: int) -> float:
    """FLOPs of a forward pass over B (2 n entries + 4 n^2 d L) for rows of n = l + T: every layer reads them whole."""
    batch, parts = recording.trace.batch, anatomy(plain)
    with FlopCounter() as counter, torch.no_grad():
        recording.run.baseline.forward(recording.run.model, batch)
    rows, count = batch["input_ids"].shape
    linears = [module for module in plain.modules() if is_linear(module)]
    entries = sum(in_features(linear) * out_features(linear) for linear in linears)
    longer = length + count
    formula = rows * (2 * longer * entries + 4 * longer**2 * parts.width * parts.depth)
    return counter.total / formula
