"""Checks what a short run shows of iterative magnitude pruning: all its trainings, their starts, and what each one
pruned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.scouts import Scout, scouts_of
from techniques.shared.sparse import pruned
from techniques.shared.sparse.connections import paths_of
from techniques.shared.sparse.masks import MASK
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_training.lth_imp.technique import LotteryTicket


@judged(
    "remaining",
    "After r rounds 0.8^r of the connections are left: 51.2 % after three.",
    "Section 1, iterative pruning; section 2",
    equals=0.512,
    tolerance=0.001,
    note="rounded up to a whole connection in every round",
)
@judged("off_rate", "Each round prunes a fifth of what is left, and no connection more.", "Section 2", id="rate")
@judged(
    "wrongly_pruned",
    "What goes are the smallest trained weights.",
    "Section 1, iterative pruning, step 3",
    id="smallest",
)
@judged(
    "off_initial",
    "The ticket starts from the weights of the first initialisation, to the bit, and so does every training before it.",
    "Section 1, iterative pruning, step 4",
    id="rewound",
)
@judged(
    "off_start",
    "Every round starts from the weights of the first initialisation, to the bit.",
    "Section 1, iterative pruning, step 4",
    id="rounds_rewound",
)
@judged(
    "off_dense",
    "The first round is the training of the dense network, to the bit.",
    "Section 1, iterative pruning, step 2",
    id="dense_first",
)
@judged("topology_changed", "A ticket's connections do not change while it trains.", "Section 1", id="fixed")
@judged(
    "dead",
    "Pruned weights are zero after every step, and get neither gradient nor momentum.",
    "Section 1: f(x; m * theta)",
    id="pruned_weights_are_zero",
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient.",
    "Section 1: f(x; m * theta)",
    id="pruned_weights_stay_zero",
)
@judged(
    "first_weights",
    "Of the control with new weights, no connection has its first weight.",
    "Section 1: the parameters of a winning ticket drawn anew",
    id="reinitialised_weights",
    baselines=["gpt"],
    settings="control=reinitialised",
)
@judged(
    "wrongly_pruned",
    "It has the ticket's connections.",
    "Section 1: the parameters of a winning ticket drawn anew",
    id="reinitialised_connections",
    baselines=["gpt"],
    settings="control=reinitialised",
)
@judged(
    "wrongly_pruned",
    "The control with connections at random places has others than the ticket.",
    "Figure 1: sparse networks sampled at random",
    id="shuffled_connections",
    above=0.0,
    baselines=["gpt"],
    settings="control=shuffled",
)
@judged(
    "off_layers",
    "It has as many of them in each layer.",
    "Figure 1: sparse networks sampled at random",
    id="shuffled_in_each_layer",
    baselines=["gpt"],
    settings="control=shuffled",
)
@judged(
    "off_initial",
    "Its weights are the first ones.",
    "Figure 1: sparse networks sampled at random",
    id="shuffled_weights",
    baselines=["gpt"],
    settings="control=shuffled",
)
@judged(
    "sparse_flops",
    "The ticket's products need as many multiplications as it has connections.",
    "follows from section 1",
    equals=0.512,
    tolerance=0.001,
    kind="counted",
    baselines=["bert", "gpt", "vit"],  # of a masked auto-encoder, decoder and encoder see unequally many tokens
    note=(
        "the masked matrices only, with the rows that came into each; a kernel that computes nothing for zeros, which "
        "this is not: see step_time"
    ),
)
def probes(recording: Recording, own: LotteryTicket) -> Mapping[str, float]:
    """Includes the invariants of :mod:`techniques.shared.sparse.pruned`. Connections and numbers that are off are
    counted, ``remaining`` and ``first_weights`` are shares. For a claim, ``cost_in_runs`` is the steps of all trainings
    over those of one."""
    if own.is_reference:
        return {}
    run = recording.run
    with unchanged_randomness(run.device), scouts_of(run) as scouts:
        replace(own).model(run.plain_model(), run)  # once more: a run is deterministic
        start, end = _reference(recording, own)
    scouts = scouts[: own.rounds]  # the last one may have given a control its weights
    paths = paths_of(run)
    masks = [*(_masks(scout.run, paths) for scout in scouts), pruned.masks_of(recording)]
    weights = [{path: scout.run.model.get_parameter(f"{path}.weight").detach() for path in paths} for scout in scouts]
    left = [sum(int(value.sum()) for value in by_path.values()) for by_path in masks]
    reference = run.baseline.recipe_of(run.job.setting).steps
    return {
        "remaining": left[-1] / sum(mask.numel() for mask in masks[-1].values()),
        "cost_in_runs": (sum(scout.run.step for scout in scouts) + len(recording.traces)) / reference,
        "off_dense": _different(dict(scouts[0].run.model.named_parameters()), end) if scouts else len(end),
        "off_start": sum(_off_start(*scout, start) for scout in zip(scouts[1:], masks[1:-1], strict=True)),
        "wrongly_pruned": sum(map(_wrongly_pruned, masks, masks[1:], weights)),
        "off_rate": sum(abs(before - after - math.ceil(own.rate * before)) for before, after in pairwise(left)),
        "off_layers": _off_layers(masks[-2], masks[-1], weights[-1]) if scouts else 0,
        "first_weights": _first_weights(recording, masks[-1], start),
        **pruned.invariants(recording, own, start),
    }


def _reference(recording: Recording, own: LotteryTicket) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the parameters of the reference's run at the step to rewind to, and at its end."""
    twin = recording.twin("baseline").run
    steps = twin.recipe.steps
    twin.train(round(own.rewind * steps))
    start = {name: parameter.detach().clone() for name, parameter in twin.model.named_parameters()}
    twin.train(steps - twin.step)
    return start, {name: parameter.detach() for name, parameter in twin.model.named_parameters()}


def _masks(run: Run, paths: list[str]) -> dict[str, Tensor]:
    return {path: run.model.get_buffer(f"{path}.{MASK}") for path in paths}


def _different(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> int:
    return sum(int((one[name] != value).sum()) for name, value in other.items())


def _off_start(scout: Scout, masks: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> int:
    expected = {name: value * masks.get(name.removesuffix(".weight"), 1) for name, value in start.items()}
    return _different(scout.start, expected)


def _wrongly_pruned(before: Mapping[str, Tensor], after: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> int:
    """Counts wrongly pruned connections: among the connections before, the largest weights should be those after."""
    sizes = {path: weight.abs().masked_fill(~before[path], -1.0) for path, weight in weights.items()}
    return pruned.wrongly_kept(after, sizes, {path: torch.zeros_like(size) for path, size in sizes.items()})


def _off_layers(before: Mapping[str, Tensor], after: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> int:
    """Counts missing or surplus connections: of each layer as many should be left as it has among the largest of
    all."""
    left = sum(int(value.sum()) for value in after.values())
    every = torch.cat([weight.abs()[before[path]] for path, weight in weights.items()])
    threshold = every.sort(descending=True).values[left - 1]
    wanted = {path: int((weight.abs()[before[path]] >= threshold).sum()) for path, weight in weights.items()}
    return sum(abs(int(after[path].sum()) - count) for path, count in wanted.items())


def _first_weights(recording: Recording, masks: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    own = recording.traces[0].before.parameters
    same = sum(int((own[f"{path}.weight"] == start[f"{path}.weight"])[mask].sum()) for path, mask in masks.items())
    return same / sum(int(mask.sum()) for mask in masks.values())
