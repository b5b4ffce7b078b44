"""Checks what the steps of a short run show of EarlyBERT: the search, what was removed, and what training began
with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import torch

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.plain import plain_model
from techniques.sparse_training.earlybert.technique import EarlyBert
from techniques.sparse_training.shared.gate_probes import (
    Joint,
    cut,
    heads_in,
    masked_apart,
    neurons_in,
    removed_by_formula,
    search_step,
    strongest,
)

OF_ITS_BASELINES = True  # whose layers hold heads one after the other


def records(run: Run, own: EarlyBert) -> bool:
    """Selects all steps: the search, the draw, and what follows."""
    return not own.is_reference


@judged(
    "off_one",
    "All coefficients begin at 1, where they change nothing.",
    "Section 3.2; the authors' modeling_bert.py",
    id="unchanged_at_start",
)
@judged(
    "gradient_roundings",
    "Each head's output and each hidden neuron is multiplied by its coefficient, and nothing else is: gradients of "
    "weights and coefficients are the chain rule's.",
    "Section 3.2, equations of the self-slimming coefficients",
    id="by_unit",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "penalty",
    "The loss has 1e-4 times the L1 norm of the coefficients.",
    "Section 3.2; the authors' scripts",
    equals=1e-4,
    tolerance=0.01,
)
@judged(
    "off_search",
    "The search takes 0.2 of 2.2 epochs.",
    "The authors' scripts: slimming_coef_step 0.2, two epochs of training",
    id="search_steps",
    note="rounded to steps, one at least",
)
@judged(
    "off_heads",
    "A third of the heads of each layer goes.",
    "Section 3.3; the authors' scripts",
    id="heads",
    scope="module",
    note="rounded to whole heads",
)
@judged(
    "off_neurons",
    "40 % of all neurons go, wherever they are.",
    "Section 3.3; the authors' scripts",
    id="neurons",
    scope="module",
)
@judged(
    "off_draw",
    "What stays are the heads and neurons with the largest coefficients, at their initial weights, and everything "
    "else at its own.",
    "Section 3.3",
    id="drawn_network",
    scope="module",
)
@judged(
    "off_state",
    "Training starts anew: no optimizer state of the search stays.",
    "Section 3.3: efficient training",
    id="fresh_optimizer",
)
@judged("untrained", "All parameters of the drawn network are trained.", "Section 3.3", id="all_train")
@judged(
    "off_schedule",
    "The search runs at half the learning rate of training (2e-5 and 4e-5).",
    "The authors' scripts",
    id="rates",
    at_most=1e-9,
    note="constant after its warm-up; training has the recipe's schedule over the steps that are left",
)
@judged(
    "masked",
    "The network without the units computes what the whole one computes with them at zero.",
    "Section 3.3: heads and neurons are removed",
    id="pruned_is_masked",
    at_most=1e-12,
    scope="module",
    note="in float64, after training",
)
def probes(recording: Recording, own: EarlyBert) -> Mapping[str, float]:
    """Steps, units, numbers and parameters that are off are counted; ``off_schedule`` is relative to the largest rate.
    For a claim, ``removed_parameters`` is over the formula."""
    if own.is_reference:
        return {}
    run, plain, traces = recording.run, plain_model(recording), recording.traces
    initial = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    heads = heads_in(plain) if own.heads else []
    neurons = neurons_in(plain) if own.neurons else []
    joints, last = [*heads, *neurons], next(trace for trace in traces if _draws(trace))
    ticket = strongest(last.update.after.parameters, heads, neurons, (own.heads, own.neurons))
    searching = [trace for trace in traces if trace.step <= last.step]
    steps = [search_step(recording, trace, plain_model(recording), joints) for trace in searching]
    left, after = cut(plain, initial, joints, ticket), last.after.parameters
    following = next((trace for trace in traces if trace.step == last.step + 1), None)
    return {
        "off_one": sum(int((traces[0].before.parameters[joint.coefficients] != 1).sum()) for joint in joints),
        "gradient_roundings": max(roundings for roundings, _ in steps),
        "penalty": fmean(penalty for _, penalty in steps),
        "off_search": abs(last.step + 1 - _search_steps(own, run)),
        "off_heads": max((abs(_gone(last, head) - round(own.heads * head.count)) for head in heads), default=0),
        "off_neurons": abs(
            sum(_gone(last, neuron) for neuron in neurons)
            - round(own.neurons * sum(neuron.count for neuron in neurons))
        ),
        "off_draw": sum(_different(after.get(name), value) for name, value in left.items()) + len(after.keys() - left),
        "off_state": sum(bool(state) for state in last.after.state.values()),
        "untrained": 0 if following is None else _untrained(following),
        "masked": masked_apart(recording, plain_model(recording), joints, ticket),
        "removed_parameters": (_count(initial) - _count(after)) / removed_by_formula(plain, heads, neurons, ticket),
        "off_schedule": _off_schedule(recording, own),
    }


def _draws(trace: Trace) -> bool:
    return trace.before.parameters.keys() != trace.after.parameters.keys()


def _search_steps(own: EarlyBert, run: Run) -> int:
    return max(1, round(own.search * run.recipe.steps))


def _gone(trace: Trace, joint: Joint) -> int:
    """Counts the units of a joint that a draw took away, by the size of its weight."""
    before = trace.before.parameters
    weight = next(before[name] for name in before if name in (f"{joint.path}.linear.weight", f"{joint.path}.weight"))
    return (weight.numel() - trace.after.parameters[f"{joint.path}.weight"].numel()) // (weight.numel() // joint.count)


def _different(ours: torch.Tensor | None, expected: torch.Tensor) -> int:
    if ours is None or ours.shape != expected.shape:
        return expected.numel()
    return int((ours != expected).sum())


def _untrained(trace: Trace) -> int:
    update = trace.update
    names = trace.of("backward")[0].gradients
    return sum(not (name in update.before.hyper and update.moved(name).any()) for name in names)


def _count(values: Mapping[str, torch.Tensor]) -> int:
    return sum(value.numel() for value in values.values())


def _off_schedule(recording: Recording, own: EarlyBert) -> float:
    run = recording.run
    reference, first = run.baseline.recipe_of(run.job.setting), _search_steps(own, run)
    search = replace(reference, steps=first, schedule="constant")
    rest = replace(reference, steps=max(1, reference.steps - first))
    off = 0.0
    for trace in recording.traces:
        step, ours = trace.step, max(settings["lr"] for settings in trace.update.before.hyper.values())
        rate = own.search_rate * search.learning_rate_at(step) if step < first else rest.learning_rate_at(step - first)
        off = max(off, abs(ours - rate) / reference.learning_rate)
    return off
