"""Checks what recorded steps show of a wide model that is stopped early, pruned in rounds, and quantised to be
evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Values
from techniques.overparameterization.shared.width_probes import oriented, shows
from techniques.overparameterization.train_large_compress.technique import TrainLargeCompress
from techniques.shared.plain import plain_model

EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: TrainLargeCompress) -> bool:
    """Selects all steps: when weights go, which, and that they stay away."""
    return not own.is_reference


@judged(
    "changed",
    "New neurons are drawn as the reference's are, which stay, outgoing weights divided by the root of the width.",
    "This card's variant",
    id="drawn_alike",
    scope="module",
)
@judged(
    "off_stop",
    "Training stops early, after a third of the reference's steps.",
    "Abstract: train very large models and stop long before they converge",
    id="stops_early",
    scope="end_to_end",
)
@judged(
    "off_zeros",
    "Weights go in rounds, each of the same share of those that are left, to half of all.",
    "Section 4: iterative magnitude pruning",
    id="rounds",
)
@judged("misplaced", "The smallest weights of all matrices go.", "Section 4: magnitude pruning", id="magnitude")
@judged("revived", "What is pruned stays 0.", "Section 4", id="stay_zero")
@judged("elsewhere", "Embeddings, norms, biases and head are not pruned.", "Section 4", id="others_stay")
@judged(
    "off_grid",
    "Each evaluated weight is the nearest of its row's levels.",
    "Section 4: quantisation",
    id="nearest_level",
    at_most=0.5001,  # roundings of up to 127 levels
    scope="module",
)
@judged(
    "off_levels",
    "It is one of the 2^bits - 1 levels of its row.",
    "Section 4: quantisation",
    id="levels",
    at_most=1e-4,  # roundings of up to 127 levels
    scope="module",
)
@judged(
    "dead_gradients",
    "Pruned weights get no gradient.",
    "Section 4: pruned weights are out of the model",
    id="no_gradient",
)
@judged(
    "neurons",
    "A larger model is trained: four times the neurons.",
    "Section 3: wider and deeper; four times is this entry's choice",
    id="large",
    equals=4.0,
    tolerance=1e-9,
    kind="counted",
    scope="module",
)
@judged(
    "bytes_over_formula",
    "Bytes are weights that are left times their bits.",
    id="bytes",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    scope="end_to_end",
)
def probes(recording: Recording, own: TrainLargeCompress) -> Mapping[str, float]:
    """Includes those of :func:`width_probes.shows`. ``off_grid`` and ``off_levels`` are in units of a row's levels,
    from the trained weights and from a level; ``bytes_over_formula`` is the technique's own account over one by hand.
    All others are counts."""
    if own.is_reference:
        return {}
    run, traces, plain = recording.run, recording.traces, plain_model(recording)
    paths = [part.path for part in anatomy(plain).linears]
    names = [
        name for name in traces[0].before.parameters if name.rpartition(".")[0] in paths and name.endswith("weight")
    ]
    total, steps = sum(traces[0].before.parameters[name].numel() for name in names), len(traces)
    reference = run.baseline.recipe_of(run.job.setting).steps
    off_zeros = misplaced = revived = elsewhere = dead = earlier = 0
    for trace in traces:
        went, after = trace.update.after.parameters, trace.after.parameters
        due = [max(1, round((1 - own.prune + own.prune * r / own.rounds) * steps)) for r in range(own.rounds)]
        passed = sum(trace.step + 1 >= end for end in due) if own.sparsity else 0
        share = 1 - (1 - own.sparsity) ** (passed / own.rounds)
        off_zeros += abs(_zeros(after, names) - round(share * total))
        dropped = [went[name][(after[name] == 0) & (went[name] != 0)].abs() for name in names]
        largest = max((float(tensor.max()) for tensor in dropped if tensor.numel()), default=0.0)
        if trace.step + 1 in due:
            misplaced += sum(int((after[name][after[name] != 0].abs() < largest).sum()) for name in names)
        before = trace.before.parameters
        revived += sum(int(((before[name] == 0) & (after[name] != 0)).sum()) for name in names) if passed else 0
        gradients = trace.update.before.gradients
        dead += sum(int(gradients[name][before[name] == 0].count_nonzero()) for name in names) if earlier else 0
        earlier = passed
        elsewhere += sum(int((went[name] != after[name]).sum()) for name in went.keys() - set(names))
    evaluated = dict(own.evaluated(run.model, run).named_parameters())
    pairs = [(run.model.get_parameter(name), evaluated[name], name) for name in names]
    grids = [_grid(oriented(plain, name, ours), oriented(plain, name, small), own.bits) for ours, small, name in pairs]
    nonzeros = total - _zeros(traces[-1].after.parameters, names)
    by_hand = nonzeros * own.bits / 32 / sum(plain.get_parameter(name).numel() for name in names)
    return {
        **shows(recording, own.width),
        "off_stop": abs(steps - max(1, round(own.stop * reference))),
        "off_zeros": off_zeros,
        "misplaced": misplaced,
        "revived": revived,
        "elsewhere": elsewhere,
        "dead_gradients": dead,
        "off_grid": max(off for off, _ in grids),
        "off_levels": max(off for _, off in grids),
        "bytes_over_formula": own.probes(run)["bytes"] / by_hand,
    }


def _zeros(values: Values, names: list[str]) -> int:
    return sum(int((values[name] == 0).sum()) for name in names)


@torch.no_grad()
def _grid(weight: torch.Tensor, evaluated: torch.Tensor, bits: int) -> tuple[float, float]:
    if bits == 32:
        return float((weight != evaluated).sum()), 0.0
    unit = weight.double().abs().amax(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / (2 ** (bits - 1) - 1)
    levels = evaluated.double() / unit
    return (levels - weight.double() / unit).abs().max().item(), (levels - levels.round()).abs().max().item()
