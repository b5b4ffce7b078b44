"""Checks what the steps of a short run show of early-bird tickets: masks by a second ranking, when they settle, what
stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import is_transposed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.shared.plain import names_in, plain_model
from techniques.sparse_training.early_bird.technique import EarlyBird
from techniques.sparse_training.shared.gate_probes import (
    Joint,
    Kept,
    cut,
    heads_in,
    masked_apart,
    neurons_in,
    removed_by_formula,
    search_step,
    strongest,
)

OF_ITS_BASELINES = True  # whose layers hold heads one after the other
EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: EarlyBird) -> bool:
    """Selects all steps: every mask, the draw, and what follows."""
    return bool(own.share)


@judged(
    "off_one", "All coefficients begin at 1, where they change nothing.", "This card's variant", id="unchanged_at_start"
)
@judged(
    "gradient_roundings",
    "Each unit is multiplied by its coefficient, and nothing else is: gradients are the chain rule's.",
    "This card's variant",
    id="by_unit",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "penalty",
    "The scaling factors are under L1, of 1e-4.",
    "Section 3.1; the authors' code",
    equals=1e-4,
    tolerance=0.01,
)
@judged(
    "off_draw",
    "The ticket is drawn at the first epoch whose mask is within a normalised Hamming distance of 0.1 of each of the "
    "four before it.",
    "Section 3.2, algorithm 1; class EarlyBird of the authors' code",
    id="draw",
    note="one step an epoch in so short a run",
)
@judged(
    "draw_roundings",
    "What stays are the units with the largest factors, with the weights and factors of the moment.",
    "Section 4.1; retrain_continue of the authors' code",
    id="inherited_weights",
    at_most=1.0,  # of a product
    scope="module",
)
@judged(
    "off_state",
    "The smaller network is trained by an optimizer of its own.",
    "retrain_continue of the authors' code",
    id="fresh_optimizer",
)
@judged(
    "off_rate",
    "The learning rate goes on as if nothing had happened.",
    "retrain_continue of the authors' code, from the epoch of the draw",
    id="same_schedule",
)
@judged(
    "masked",
    "The network without the units computes what the whole one computes with them at zero.",
    "Section 4.1: physical pruning",
    id="pruned_is_masked",
    at_most=1e-12,
    scope="module",
    note="in float64, after training",
)
def probes(recording: Recording, own: EarlyBird) -> Mapping[str, float]:
    """``draw_roundings`` is of the drawn network, coefficients multiplied in; steps, coefficients and parameters that
    are off are counted. For a claim, ``removed_parameters`` is over the formula."""
    if not own.share:
        return {}
    run, plain, traces = recording.run, plain_model(recording), recording.traces
    heads, neurons = heads_in(plain), neurons_in(plain)
    joints = [*heads, *neurons]
    searching = [trace for trace in traces if joints[0].coefficients in trace.before.parameters]
    steps = [search_step(recording, trace, plain_model(recording), joints) for trace in searching]
    tickets = [strongest(trace.update.after.parameters, heads, neurons, (own.share, own.share)) for trace in searching]
    last = searching[-1]
    left, searched, size = last.after.parameters, last.update.after.parameters, _count(dict(plain.named_parameters()))
    expected = cut(plain, _folded(searched, plain, joints), joints, tickets[-1])
    return {
        "off_one": sum(int((traces[0].before.parameters[joint.coefficients] != 1).sum()) for joint in joints),
        "gradient_roundings": max(roundings for roundings, _ in steps),
        "penalty": fmean(penalty for _, penalty in steps),
        "off_draw": abs(len(searching) - _settled(tickets, joints, own, run)),
        "off_rate": sum(not _at_the_recipes_rate(recording, trace) for trace in traces),
        "draw_roundings": _roundings(left, expected),
        "off_state": sum(bool(state) for state in last.after.state.values()),
        "masked": masked_apart(recording, plain_model(recording), joints, tickets[-1]),
        "removed_parameters": (size - _count(left)) / removed_by_formula(plain, heads, neurons, tickets[-1]),
    }


def _settled(tickets: Sequence[Kept], joints: Sequence[Joint], own: EarlyBird, run: Run) -> int:
    """Counts the steps after which the mask is near enough to each of those before it; of the run where none is.

    Tickets are those after every step, and count where an interval of the run ends.
    """
    interval = own.interval or max(1, round(run.recipe.steps / 160))
    every = [_mask(ticket, joints) for ticket in tickets[interval - 1 :: interval]]
    for number in range(own.memory, len(every) + 1):
        *earlier, newest = every[number - own.memory : number]
        if all((newest != mask).double().mean().item() <= own.threshold for mask in earlier):
            return number * interval
    return run.recipe.steps


def _mask(ticket: Kept, joints: Sequence[Joint]) -> Tensor:
    """Tells whether each unit stays, bool [units]."""
    mask = [torch.zeros(joint.count, dtype=torch.bool) for joint in joints]
    for units, joint in zip(mask, joints, strict=True):
        units[list(ticket[joint.path])] = True
    return torch.cat(mask)


def _folded(values: Values, plain: nn.Module, joints: Sequence[Joint]) -> dict[str, Tensor]:
    """Returns the search's weights by the plain model's names, float64, with the coefficients in the joints'
    columns."""
    weights = {name: values[theirs].double() for name, theirs in names_in(plain, values).items()}
    for joint in joints:
        by_column = values[joint.coefficients].double().repeat_interleave(joint.size)
        transposed = is_transposed(plain.get_submodule(joint.path))
        weights[f"{joint.path}.weight"] = weights[f"{joint.path}.weight"] * (
            by_column[:, None] if transposed else by_column
        )
    return weights


def _roundings(ours: Values, expected: Values) -> float:
    """Computes the largest distance of a number from what it should be, in its own roundings; infinite where shapes
    differ."""
    if ours.keys() != expected.keys() or any(ours[name].shape != value.shape for name, value in expected.items()):
        return float("inf")
    least = torch.finfo(torch.float32).tiny
    units = {name: EPS * value.abs().clamp(min=least) for name, value in expected.items()}
    return max(((ours[name].double() - value).abs() / units[name]).max().item() for name, value in expected.items())


def _count(values: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in values.values())


def _at_the_recipes_rate(recording: Recording, trace: Trace) -> bool:
    expected = recording.run.baseline.recipe_of(recording.run.job.setting).learning_rate_at(trace.step)
    return all(settings["lr"] == expected for settings in trace.update.before.hyper.values())
