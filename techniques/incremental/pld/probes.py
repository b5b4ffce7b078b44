"""Tells what the steps of a short run show of progressive layer dropping: which blocks ran, by how much they were
scaled, and what became of those that did not run.

The step's gradients are compared with those of a plain model in which a dropped block's output is its input, and the
last layers of the others' branches are divided by p_i: (W h + b) / p = (W / p) h + b / p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import Block, anatomy, weight_matrix
from suite.model.segments import split_hidden
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.incremental.pld.technique import ProgressiveLayerDropping
from techniques.incremental.shared.states import same_state
from techniques.shared.block_flops import block_step_flops, tokens_of_a_block
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, outputs_of, plain_model

OF_ITS_BASELINES = True  # whose branches end in a linear layer each
DRAWS = 4000  # of each block, to see how often it is kept
COMPARED = 3  # steps whose gradients are computed again
COUNTED = 3  # steps whose FLOPs are


def records(run: Run, own: ProgressiveLayerDropping) -> bool:
    """Records all steps: which blocks each ran."""
    return own.theta < 1


@judged(
    "gradient_roundings",
    "A kept block's branches are divided by p_i(t), those of a dropped one are left out, all others stay: the step's "
    "gradients are those of a plain model so changed.",
    "Switchable Transformer block; theta(t) of DeepSpeed's progressive_layer_drop.py, p_i = 1 - i/L (1 - theta(t)), "
    "division as in the authors' modelingpreln_layerdrop.py",
    id="switchable_block",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "half_run",
    "A block's attention and MLP run or are dropped together.",
    "Switchable Transformer block; the authors' modelingpreln_layerdrop.py, action",
    id="both_branches_together",
)
@judged(
    "at_start",
    "theta(0) = 1: training starts with all blocks, and drops more of them as it goes on.",
    "Temporal schedule; DeepSpeed's progressive_layer_drop.py",
    id="nothing_at_the_start",
)
@judged(
    "draws_off",
    "Block i is kept with probability p_i, in each step anew and whatever becomes of the others.",
    "Keep probabilities over depth; No Train No Gain's layer_drop.py",
    id="drawn",
    at_most=5.0,  # standard errors of 4000 draws
)
@judged(
    "off_gates",
    "A step runs the blocks that are drawn, and no others.",
    "Switchable Transformer block",
    id="runs_as_drawn",
)
@judged(
    "moved",
    "A dropped block's weights get no gradient, no decay and no optimizer state.",
    "Switchable Transformer block: it is the identity in this step",
    id="dropped_stay",
)
@judged(
    "evaluated_otherwise",
    "Evaluation runs all blocks, without any factor.",
    "Switchable Transformer block: branches are divided in training so that nothing need be done afterwards",
    id="whole_at_evaluation",
    scope="end_to_end",
)
@judged(
    "share_over_formula",
    "1 - (1 - theta) (L + 1) / 2 L of all blocks run on average: 0.729 of 12, 0.688 of 4",
    "follows from the keep probabilities, once theta(t) has fallen",
    id="share_of_blocks",
    equals=1.0,
    tolerance=0.03,
    kind="counted",
    scope="end_to_end",
    note="the mean of 4000 draws of each block, over the formula",
)
def probes(recording: Recording, own: ProgressiveLayerDropping) -> Mapping[str, float]:
    """``draws_off`` is of the frequency with which a block is kept, or two of them are together, in standard errors at
    most. For a claim, ``saved_over_formula`` is the FLOPs that dropped blocks save, over the formula's for them."""
    if own.theta == 1:
        return {}
    run, traces = recording.run, recording.traces
    blocks = anatomy(plain_model(recording)).blocks
    ran_by_step = [[_ran(block, trace) for block in blocks] for trace in traces]
    dropping = [(trace, ran) for trace, ran in zip(traces, ran_by_step, strict=True) if 0 < sum(ran) < len(ran)]
    return {
        "gradient_roundings": max(
            [_gradient_roundings(recording, own, *decided) for decided in dropping[:COMPARED]], default=math.nan
        ),
        "half_run": sum(_half_run(block, trace) for trace in traces for block in blocks),
        "at_start": sum(not keeps for keeps in ran_by_step[0]),
        "moved": sum(
            _moved(block, trace)
            for trace, ran in zip(traces, ran_by_step, strict=True)
            for block, runs in zip(blocks, ran, strict=True)
            if not runs
        ),
        "off_gates": sum(
            ran != gate
            for trace, row in zip(traces, ran_by_step, strict=True)
            for ran, gate in zip(row, own.gates(run.seed, trace.step, run.recipe.steps)[1], strict=True)
        ),
        **_drawn(own, run, len(blocks)),
        "saved_over_formula": _saved_over_formula(recording),
        "evaluated_otherwise": _evaluated_otherwise(recording),
    }


def keep_probabilities(own: ProgressiveLayerDropping, step: int, steps: int, depth: int) -> list[float]:
    """Computes p_i(t) = 1 - i / L (1 - theta(t)), i = 1..L."""
    theta = own.theta + (1 - own.theta) * math.exp(-own.gamma * step / steps)
    return [1 - (1 - theta) * (index + 1) / depth for index in range(depth)]


def _ran(block: Block, trace: Trace) -> bool:
    return any(part.path in trace.ran for part in block.linears)


def _half_run(block: Block, trace: Trace) -> bool:
    return len({part.path in trace.ran for part in block.linears}) > 1


def _moved(block: Block, trace: Trace) -> int:
    update = trace.update
    names = [name for name in trace.before.parameters if name.startswith(f"{block.path}.")]
    return sum(
        name in update.before.gradients
        or not torch.equal(trace.before.parameters[name], trace.after.parameters[name])
        or not same_state(update.before.state.get(name, {}), update.after.state.get(name, {}))
        for name in names
    )


def _gradient_roundings(recording: Recording, own: ProgressiveLayerDropping, trace: Trace, ran: list[bool]) -> float:
    plain = filled(plain_model(recording), trace.before.parameters)
    blocks = anatomy(plain).blocks
    probabilities = keep_probabilities(own, trace.step, recording.run.recipe.steps, len(blocks))
    scaled = [
        (part, probability)
        for block, probability, runs in zip(blocks, probabilities, ran, strict=True)
        if runs
        for part in block.branches
    ]
    with torch.no_grad():
        for part, probability in scaled:
            weight_matrix(part.module).div_(probability)
            if isinstance(part.module.bias, Tensor):
                part.module.bias.div_(probability)
    with ExitStack() as stack:
        for block, runs in zip(blocks, ran, strict=True):
            if not runs:
                stack.callback(block.module.register_forward_hook(_as_it_came, with_kwargs=True).remove)
        gradients = gradients_of(recording, trace, plain)
    for part, probability in scaled:
        matrix_gradient(plain, part.path, gradients).div_(probability)
        if f"{part.path}.bias" in gradients:
            gradients[f"{part.path}.bias"].div_(probability)
    return apart(trace.of("backward")[0].gradients, gradients)


def _as_it_came(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    return split_hidden(args, kwargs)[0]


def _drawn(own: ProgressiveLayerDropping, run: Run, depth: int) -> dict[str, float]:
    """Returns what so many more draws show, of steps behind the run's end, where theta(t) no longer falls."""
    steps = run.recipe.steps
    later = range(100 * steps, 100 * steps + DRAWS)
    wanted = keep_probabilities(own, later.start, steps, depth)
    draws = torch.tensor([own.gates(run.seed, step, steps)[1] for step in later], dtype=torch.float64)
    shares = {(index, index): (share, p) for index, (share, p) in enumerate(zip(draws.mean(0).tolist(), wanted))}
    for one, other in combinations(range(depth), 2):
        shares[one, other] = (draws[:, one] * draws[:, other]).mean().item(), wanted[one] * wanted[other]
    errors = [abs(share - p) / math.sqrt(p * (1 - p) / DRAWS) for share, p in shares.values()]
    formula = 1 - (1 - own.theta) * (depth + 1) / (2 * depth)
    return {"draws_off": max(errors), "share_over_formula": draws.mean().item() / formula}


def _saved_over_formula(recording: Recording) -> float:
    """Measures the saving over the formula's in the first steps of another run beside a plain one, which has as many
    FLOPs in each."""
    twin, plain = recording.twin(), recording.twin("baseline").run
    plain.train(1)
    whole = plain.count_step().flops
    block = twin.run.anatomy.blocks[0]
    formula = block_step_flops(block, twin.run.recipe.batch_size, tokens_of_a_block(twin.run))
    saved = dropped = 0
    for _ in range(COUNTED):
        with FlopCounter() as counter:
            twin.record_step()
        saved += whole - counter.total
        dropped += sum(not _ran(block, twin.trace) for block in twin.run.anatomy.blocks)
    return saved / (dropped * formula) if dropped else math.nan


def _evaluated_otherwise(recording: Recording) -> int:
    run, batch = recording.run, recording.trace.batch
    plain = filled(plain_model(recording), dict(run.model.named_parameters()))
    with run.predicting() as predict:
        ours = predict(batch).logits
    return int((ours != outputs_of(recording, recording.trace, plain)).sum())
