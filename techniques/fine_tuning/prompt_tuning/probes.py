"""Tells what recorded steps show of prompt tuning, beside the pre-trained model that reads the longer rows as its own
call allows: embeddings in place of tokens, and the positions of the text for the text.
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
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.fine_tuning.prompt_tuning.technique import PromptTuning
from techniques.fine_tuning.shared.tuning_probes import at_the_start_and_in_the_middle as records
from techniques.fine_tuning.shared.tuning_probes import trained_numbers, tuning_probes
from techniques.shared.plain import apart, outputs_of, plain_model

__all__ = ["probes", "records"]

OF_ITS_BASELINES = True  # which say the position of each token, and run every layer on every token
PROMPT = "prompt"


@judged("elsewhere", "The prompt gets a gradient, and nothing else does", "Section 2", id="prompt_alone")
@judged("frozen_moved", "No pre-trained weight moves by a bit", "Section 2", id="model_is_frozen")
@judged("at_rest", "The prompt moves", "Section 2", id="prompt_is_trained")
@judged(
    "not_embeddings",
    "Every vector of the prompt starts as the embedding of a token",
    "Section 3.2, sampled vocabulary",
    id="starts_in_the_vocabulary",
)
@judged(
    "distinct",
    "The tokens are drawn at random: as many are different as of a draw from the vocabulary",
    "Section 3.2; from_sample_of_embeddings of the authors' prompts.py",
    id="drawn",
    equals=1.0,
    tolerance=0.2,  # five standard deviations of 100 draws of some 100 letters
)
@judged(
    "outputs_off",
    "The model reads [P; E(x)], the text at its own positions and seen whole, and answers for the text alone",
    "Section 2",
    id="before_the_text",
    at_most=1e-12,  # of the largest output, in float64: some thousand roundings
)
@judged(
    "gradient_roundings",
    "The prompt's gradient is that of the loss on the text, as the frozen model passes it back",
    "Section 2",
    id="gradient",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "rate", "Thirty times the learning rate of full fine-tuning", "This entry's choice", equals=30.0, tolerance=1e-6
)
@judged(
    "state_bytes",
    "Adam keeps 8 bytes for each number of the prompt, and none for the model",
    "follows from section 2",
    equals=8.0,
    kind="counted",
    note="two moments in float32",
)
@judged(
    "flops",
    "A forward pass costs as much as one over rows that are longer by l",
    "follows from section 2",
    id="longer_rows",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    note="B (2 n entries + 4 n^2 d L) FLOPs for n = l + T; eager attention",
)
def probes(recording: Recording, own: PromptTuning) -> Mapping[str, float]:
    """Includes those of :func:`tuning_probes`. ``outputs_off`` is of the pre-trained model's logits for the longer row,
    relative to the largest, in float64. For a claim, ``prompt_parameters`` is what is trained, over l d."""
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
    """Returns what the model says of a text behind the prompt."""
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
    """Returns the number of different tokens among ``draws``, on average: all, or with replacement where the vocabulary
    is too small."""
    return draws if draws <= vocabulary else vocabulary * (1 - (1 - 1 / vocabulary) ** draws)


def _flops_over_formula(recording: Recording, plain: nn.Module, length: int) -> float:
    """Returns the FLOPs of a forward pass over B (2 n entries + 4 n^2 d L) for rows of n = l + T: every layer reads
    them whole."""
    batch, parts = recording.trace.batch, anatomy(plain)
    with FlopCounter() as counter, torch.no_grad():
        recording.run.baseline.forward(recording.run.model, batch)
    rows, count = batch["input_ids"].shape
    linears = [module for module in plain.modules() if is_linear(module)]
    entries = sum(in_features(linear) * out_features(linear) for linear in linears)
    longer = length + count
    formula = rows * (2 * longer * entries + 4 * longer**2 * parts.width * parts.depth)
    return counter.total / formula
