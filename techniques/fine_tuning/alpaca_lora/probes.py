"""Tells what recorded steps show of the recipe: its batches and passes, its rate and decay, and what trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.fine_tuning.alpaca_lora.technique import AlpacaLoRA
from techniques.fine_tuning.shared.low_rank_probes import structure
from techniques.shared.plain import apart, plain_model

OF_ITS_BASELINES = True  # whose projections are apart, or three equal parts


def records(run: Run, own: AlpacaLoRA) -> bool:
    """Tells whether it is the start, where the update is 0, or the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "different_at_start",
    "B is zero at the start, so that the adapted model gives the pre-trained one's outputs to the bit",
    "LoraConfig's default initialisation",
    id="starts_as_the_pretrained_model",
)
@judged(
    "frozen_moved",
    "No pre-trained weight moves by a bit, the output layer's neither",
    "finetune.py, get_peft_model",
    id="pretrained_weights_are_frozen",
)
@judged(
    "factors_at_rest",
    "A and B of every adapted matrix are trained",
    "finetune.py, get_peft_model",
    id="factors_are_trained",
)
@judged(
    "elsewhere",
    "q_proj and v_proj are adapted, and nothing else is",
    "finetune.py, lora_target_modules",
    id="query_and_value",
)
@judged(
    "dropped_for_the_layer",
    "Dropout is of the update's input alone: the frozen layer gets all of it",
    "finetune.py, lora_dropout; peft: lora_A(dropout(x))",
    id="frozen_input_is_whole",
)
@judged(
    "merged",
    "Merged into the weights the update gives the same outputs",
    "export_hf_checkpoint.py",
    at_most=1e-12,  # of the largest output, in float64: some thousand roundings
)
@judged("batch", "A step sees 128 examples", "finetune.py, batch_size", equals=128.0)
@judged("passes", "A step makes 32 passes of 4 examples", "finetune.py, micro_batch_size", equals=32.0)
@judged(
    "first_pass",
    "A pass's gradient counts by its share of the batch",
    "finetune.py, gradient_accumulation_steps",
    id="mean_of_passes",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "accumulated",
    "The update's gradient is the sum of the passes', clipped at norm 1",
    "finetune.py, gradient_accumulation_steps; the Trainer's max_grad_norm",
    at_most=1000.0,
)
@judged(
    "rate",
    "The rate rises to 3e-4 over 100 of the 1172 steps",
    "finetune.py, learning_rate, warmup_steps",
    equals=1.0,
    tolerance=1e-6,
)
@judged("decay", "No weight decays", "finetune.py: the Trainer's default", id="no_decay")
@judged("undropped", "Dropout changes the gradients", "finetune.py, lora_dropout", id="dropout")
def probes(recording: Recording, own: AlpacaLoRA) -> Mapping[str, float]:
    """Includes those of :func:`low_rank_probes.structure`. Roundings are of the gradients; ``rate`` is the first
    step's, over 3e-4 times its share of the warm-up."""
    if own.implementation != "own":
        return {}
    trace, first = recording.trace, recording.traces[0]
    passes = trace.of("backward")
    micro = len(trace.indices) // len(passes)
    part = replace(trace, batch={name: tensor[:micro] for name, tensor in trace.batch.items()})
    share = micro / len(trace.indices)
    expected = recording.gradients_at(trace.before.parameters, part)
    recording.run.model.eval()
    undropped = recording.gradients_at(trace.before.parameters, part)
    recording.run.model.train()
    sums: dict[str, Tensor] = {}
    for pass_ in passes:
        for name, gradient in pass_.gradients.items():
            sums[name] = sums.get(name, torch.zeros(())) + gradient.double()
    norm = torch.stack([value.norm() for value in sums.values()]).norm().item()
    clipped = {name: value * min(1.0, 1.0 / norm) for name, value in sums.items()}
    warmup = max(1, round(100 / (3 * 50_002 / 128) * recording.run.recipe.steps))
    hyper = list(first.update.before.hyper.values())
    return {
        **structure(recording, plain_model(recording), own.rank, trains_head=False),
        "batch": len(trace.indices),
        "passes": len(passes),
        "first_pass": apart(
            passes[0].gradients, {name: share * gradient.double() for name, gradient in expected.items()}
        ),
        "accumulated": apart(trace.update.before.gradients, clipped),
        "rate": max(group["lr"] for group in hyper) * warmup / 3e-4,
        "decay": max(group["weight_decay"] for group in hyper),
        "undropped": all(torch.equal(gradient, undropped[name]) for name, gradient in expected.items()),
    }
