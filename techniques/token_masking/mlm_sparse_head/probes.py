"""Checks what recorded steps show of the sparse head, beside the model with the whole one: the last step's loss and
gradients, and what a step of a twin computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.device.random_state import replayed
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy, in_features, is_linear, out_features
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.plain import apart, filled, gradients_of, outputs_of, plain_model
from techniques.token_masking.mlm_sparse_head.technique import SparseHead

OF_ITS_BASELINES = True  # whose linear layers outside of the blocks are the head's
EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: SparseHead) -> bool:
    """Selects the last step, whose loss the run still has."""
    return run.step == run.recipe.steps - 1


@judged(
    "loss_roundings",
    "The loss is that of the whole head.",
    "Section 3.1, task 1: the masked tokens alone are predicted",
    id="same_loss",
    at_most=16.0,  # of a mean of cross-entropies
)
@judged(
    "gradient_roundings",
    "All gradients are those of the whole head.",
    "By the chain rule: what the loss leaves out sends none back",
    id="same_gradients",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "evaluated_otherwise",
    "Evaluation has all logits, to the bit.",
    "This entry: metrics read positions without a label, too",
    id="whole_at_evaluation",
    scope="end_to_end",
)
@judged(
    "saved_over_formula",
    "A position without a label costs the head no FLOPs, forwards or backwards, in its transform or its projection.",
    "Follows from the gather before the head",
    id="saves_its_flops",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    note="6 for each matrix entry of the head and each position without a label",
)
def probes(recording: Recording, own: SparseHead) -> Mapping[str, float]:
    """For a claim, ``rows_per_label`` is the rows of logits that a step computes, for each label."""
    run, trace = recording.run, recording.trace
    plain = filled(plain_model(recording), trace.before.parameters)
    loss = _loss(recording, plain)
    return {
        "loss_roundings": abs(run.loss.item() - loss) / (EPS * abs(loss)),
        "gradient_roundings": apart(trace.of("backward")[0].gradients, gradients_of(recording, trace, plain)),
        **_computed(recording),
        "evaluated_otherwise": _evaluated_otherwise(recording),
    }


@torch.no_grad()
def _loss(recording: Recording, plain: nn.Module) -> float:
    baseline, trace = recording.run.baseline, recording.trace
    with replayed(trace.random):
        return baseline.losses(baseline.forward(plain, trace.batch), trace.batch).mean().item()


def _computed(recording: Recording) -> dict[str, float]:
    """Counts in the second step of another run beside a plain one."""
    twin, reference = recording.twin(), recording.twin("baseline")
    rows = 0

    def count(module: nn.Module, args: Any, output: Tensor) -> None:
        nonlocal rows
        rows += output.shape[:-1].numel()

    for side in (reference, twin):
        side.run.train(1)
    with FlopCounter() as whole:
        reference.run.train(1)
    (projection,) = twin.run.anatomy.head
    projection.module.register_forward_hook(count)
    with FlopCounter() as sparse:
        twin.record_step()
    labelled = twin.trace.batch["labels"] != -100
    left_out = labelled.numel() - int(labelled.sum())
    formula = 6 * left_out * sum(in_features(layer) * out_features(layer) for layer in _outside(twin.run.model))
    return {
        "rows_per_label": rows / int(labelled.sum()),
        "saved_over_formula": (whole.total - sparse.total) / formula,
    }


def _outside(model: nn.Module) -> list[nn.Module]:
    """Returns the linear layers outside of the blocks."""
    blocks = tuple(f"{stack.path}." for stack in anatomy(model).stacks)
    return [module for path, module in model.named_modules() if is_linear(module) and not path.startswith(blocks)]


def _evaluated_otherwise(recording: Recording) -> int:
    run, batch = recording.run, recording.trace.batch
    plain = filled(plain_model(recording), dict(run.model.named_parameters()))
    with run.predicting() as predict:
        ours = predict(batch).logits
    return int((ours != outputs_of(recording, recording.trace, plain)).sum())
