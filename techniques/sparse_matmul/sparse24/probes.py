"""Checks what a short run shows of 2:4 sparsity: the dense training before it, what it left of each group of four, and
that the second training keeps it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.model.anatomy import is_transposed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.scouts import scouts_of
from techniques.shared.sparse import pruned
from techniques.shared.sparse.n_of_m import packed, unpacked
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_matmul.sparse24.technique import Sparse24


@judged(
    "off_pattern", "Of each four consecutive weights of a row two stay", "Section 3", id="pattern", recipes=["classic"]
)
@judged(
    "smaller_kept",
    "They are the two largest by size after the dense training",
    "Section 4, step 2",
    id="largest_stay",
    recipes=["classic"],
)
@judged(
    "off_dense",
    "The first training is the reference's to the bit",
    "Section 4, step 1",
    id="trained_before",
    recipes=["classic"],
)
@judged(
    "off_initial",
    "The second training begins with the pruned weights of the first",
    "Section 4, step 3",
    id="starts_from_the_trained",
    recipes=["classic"],
)
@judged("topology_changed", "The mask never changes", "Section 4, step 3", id="fixed_mask", recipes=["classic"])
@judged(
    "dead",
    "Pruned weights stay zero, and get neither gradient nor momentum",
    "Section 4, step 3",
    id="pruned_weights_are_zero",
    recipes=["classic"],
)
@judged(
    "dead_moved",
    "They stay so whatever the optimizer does to a weight without a gradient",
    "Section 4, step 3",
    id="pruned_weights_stay_zero",
    recipes=["classic"],
)
@judged(
    "lost",
    "Each weight that stays comes back from the packed form to its place",
    "Section 3",
    id="packed_whole",
    scope="kernel",
    recipes=["classic"],
)
def probes(recording: Recording, own: Sparse24) -> Mapping[str, float]:
    """Includes the invariants of :mod:`techniques.shared.sparse.pruned`, beside the weights of the first training.
    Groups, weights and numbers that are off are counted. Claims read ``cost_in_runs``, steps of both trainings over
    those of one, and ``packed_bytes``, of 16-bit weights in the form for sparse tensor cores, over dense ones."""
    run = recording.run
    with unchanged_randomness(run.device), scouts_of(run) as scouts:
        replace(own).model(run.plain_model(), run)  # once more: a run is deterministic
        twin = recording.twin("baseline").run
        twin.train(twin.recipe.steps)
    end = {name: parameter.detach() for name, parameter in scouts[0].run.model.named_parameters()}
    masks = {path: _rows(run, path, mask) for path, mask in pruned.masks_of(recording).items()}
    weights = {path: _rows(run, path, end[f"{path}.weight"]) for path in masks}
    forms = {path: (weights[path] * masks[path]).to(torch.bfloat16) for path in masks}
    packs = {path: packed(form.abs(), 2, 4) for path, form in forms.items()}
    return {
        "off_pattern": sum(int((mask.sum(-1) != 2).sum()) for mask in masks.values()),
        "smaller_kept": sum(_smaller_kept(weights[path], mask) for path, mask in masks.items()),
        "off_dense": sum(int((end[name] != parameter).sum()) for name, parameter in twin.model.named_parameters()),
        "cost_in_runs": (sum(scout.run.step for scout in scouts) + len(recording.traces)) / twin.recipe.steps,
        "packed_bytes": sum(pack.bytes for pack in packs.values()) / sum(2 * form.numel() for form in forms.values()),
        "lost": sum(int((unpacked(packs[path], 2, 4, 0.0) != form.abs()).sum()) for path, form in forms.items()),
        **pruned.invariants(recording, own, end),
    }


def _rows(run: Run, path: str, values: Tensor) -> Tensor:
    """Returns [out, groups, 4] of a layer's weight or mask."""
    values = values.T if is_transposed(run.model.get_submodule(path)) else values
    return values.reshape(len(values), -1, 4)


def _smaller_kept(weights: Tensor, mask: Tensor) -> int:
    sizes = weights.abs()
    largest_gone = sizes.masked_fill(mask, -1.0).amax(-1, keepdim=True)
    return int((mask & (sizes < largest_gone)).sum())
