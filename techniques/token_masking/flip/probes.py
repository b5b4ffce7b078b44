"""Checks what the steps of a short run show of FLIP: which patches each trained on, which steps saw all, and what that
cost.

The noise of a step is drawn again from torch's random state before it. The step's gradients are compared with those of
a plain model whose first block gets the patches of the lowest noise, picture by picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.device.random_state import replayed
from suite.loop.run import Run
from suite.meters.activations import SavedActivations
from suite.model.anatomy import anatomy
from suite.model.segments import split_hidden
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.block_flops import block_step_flops, counted_block_flops
from techniques.shared.plain import apart, filled, gradients_of, outputs_of, plain_model
from techniques.token_masking.flip.technique import Flip

OF_ITS_BASELINES = True  # whose first block gets patches alone, and which draw no other random number
COMPARED = 3  # steps whose gradients are computed again


def records(run: Run, own: Flip) -> bool:
    """Selects all steps: which of them see every patch."""
    return own.drop > 0


@judged(
    "gradient_roundings",
    "A masked step is a plain one in which the blocks get floor(L (1 - r)) patches of each picture, of the lowest "
    "noise, with the positions that they have.",
    "Section 3; models_flip.py of the authors, random_masking",
    id="trains_on_the_kept",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "tuned_otherwise",
    "Training ends with a short phase without masking, whose steps are plain ones.",
    "Section 3: unmasking",
    id="unmasked_tuning",
)
@judged(
    "evaluated_otherwise",
    "Evaluation sees every patch: it is the plain model's.",
    "Section 3: the encoder is applied to intact images",
    id="evaluated_on_all",
    scope="end_to_end",
)
@judged(
    "flops_over_formula",
    "A block costs what the kept patches cost: FLOPs linear in them for matrices, quadratic for attention.",
    "follows from section 3",
    id="flops_of_the_kept",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],
    note="a masked step's and a whole one's, forward and backward; eager attention",
)
def probes(recording: Recording, own: Flip) -> Mapping[str, float]:
    """Roundings are of the first, a middle and the last masked step. Claims read ``relative_block_flops`` of a masked
    step's block, over a whole one's, and ``relative_saved_bytes``, what its forward pass saves for the backward one,
    likewise."""
    if own.drop == 0:
        return {}
    run, traces = recording.run, recording.traces
    patches = _patches(recording)
    count = sum((place + 1) / patches <= 1 - own.drop + 1e-12 for place in range(patches))
    whole_from = math.floor((1 - own.tune) * run.recipe.steps + 0.5)
    masked = [trace for trace in traces if trace.step < whole_from]
    chosen = [masked[index] for index in sorted({0, len(masked) // 2, len(masked) - 1})][:COMPARED]
    return {
        "gradient_roundings": max(_gradient_roundings(recording, trace, count) for trace in chosen),
        "tuned_otherwise": sum(_otherwise(recording, trace) for trace in traces if trace.step >= whole_from),
        "evaluated_otherwise": _evaluated_otherwise(recording),
        **_flops(recording, count, patches, whole_from),
        "relative_saved_bytes": _relative_saved_bytes(recording),
    }


def _patches(recording: Recording) -> int:
    """Counts tokens in a plain model's first block."""
    plain, seen = plain_model(recording), []
    anatomy(plain).blocks[0].module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    outputs_of(recording, recording.trace, plain)
    return int(seen[0])


def _gradient_roundings(recording: Recording, trace: Trace, count: int) -> float:
    plain = filled(plain_model(recording), trace.before.parameters)
    with replayed(trace.random):
        noise = torch.rand(len(trace.indices), _patches(recording))
    rows = torch.tensor([sorted(range(len(row)), key=row.__getitem__)[:count] for row in noise.tolist()])

    def some(_: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden, others, rest = split_hidden(args, kwargs)
        return (torch.stack([states[row] for states, row in zip(hidden, rows, strict=True)]), *others), rest

    anatomy(plain).blocks[0].module.register_forward_pre_hook(some, with_kwargs=True)
    return apart(trace.of("backward")[0].gradients, gradients_of(recording, trace, plain))


def _otherwise(recording: Recording, trace: Trace) -> int:
    gradients = gradients_of(recording, trace, filled(plain_model(recording), trace.before.parameters))
    ours = trace.of("backward")[0].gradients
    return sum(int((gradient.double() != gradients[name]).sum()) for name, gradient in ours.items())


def _evaluated_otherwise(recording: Recording) -> int:
    run, batch = recording.run, recording.trace.batch
    plain = filled(plain_model(recording), dict(run.model.named_parameters()))
    with run.predicting() as predict:
        ours: Tensor = predict(batch).logits
    theirs = outputs_of(recording, recording.trace, plain)
    return ours.numel() if ours.shape != theirs.shape else int((ours != theirs).sum())


def _flops(recording: Recording, count: int, patches: int, whole_from: int) -> dict[str, float]:
    run = recording.twin().run
    rows, block = run.recipe.batch_size, run.anatomy.blocks[-1]
    some, whole = counted_block_flops(run, [0, whole_from])
    formula = block_step_flops(block, rows, count) + block_step_flops(block, rows, patches)
    return {"flops_over_formula": (some + whole) / formula, "relative_block_flops": some / whole}


def _relative_saved_bytes(recording: Recording) -> float:
    """Computes the saved bytes of the first step of a run over a plain one's."""
    saved = []
    for run in (recording.twin().run, recording.twin("baseline").run):
        with SavedActivations(run.model) as activations:
            run.train(1)
        saved.append(activations.saved_bytes)
    return saved[0] / saved[1]
