"""What recorded steps show of SkipInit: the first, in which every block is the identity, and the middle one, in which
gradients are those of a plain model without norms whose last layers of branches are multiplied by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.reading.recording import Recording
from techniques.initialization.shared import branch_probes
from techniques.initialization.skipinit.technique import SkipInit
from techniques.shared.plain import names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each


def records(run: Run, own: SkipInit) -> bool:
    """The start, where multipliers are 0, and the middle, where none is."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: SkipInit) -> Mapping[str, float]:
    """Of the first step: ``off_identity`` and ``off_identity_jacobian``, numbers that blocks, and stacks of them,
    change; ``branch_gradients``: parameters of blocks, the multipliers aside, with a gradient that is not 0;
    ``silent_multipliers``: multipliers without one; ``added_per_branch``: parameters more than the plain model has
    without its norms; ``variance_growth``: the variance of the stream behind the blocks over that before them, the
    largest of the stacks, with all multipliers at 1 / sqrt(branches).
    Of the middle step: ``norms``: layer norms that ran; ``gradient_roundings``: of its gradients from the plain
    model's; ``decayed``: multipliers that move otherwise without weight decay."""
    first, trace = recording.traces[0], recording.trace
    plain = branch_probes.without_layer_norms(plain_model(recording))
    blocks = anatomy(plain).every_block
    ends = [end for block in blocks for end in block.branches]
    values = first.before.parameters
    paths = tuple(f"{block.path}." for block in blocks)
    inside = [theirs for name, theirs in names_in(plain, values).items() if name.startswith(paths)]
    multipliers = branch_probes.own_names(plain, values)
    with branch_probes.passing(recording, values, first) as stacks:
        off = branch_probes.off_identity(stacks), branch_probes.off_identity_jacobian(stacks)
    small = {name: torch.full_like(values[name], len(ends) ** -0.5) for name in multipliers}
    with branch_probes.passing(recording, {**values, **small}, first) as stacks:
        growth = branch_probes.variance_growth(stacks)
    return {
        "off_identity": off[0],
        "off_identity_jacobian": off[1],
        "branch_gradients": len(inside) - branch_probes.without_gradient(first, inside),
        "silent_multipliers": branch_probes.without_gradient(first, multipliers),
        "added_per_branch": branch_probes.added(plain, values) / len(ends),
        "variance_growth": growth,
        "norms": branch_probes.layer_norms_run(recording, trace),
        "gradient_roundings": branch_probes.scale_gradient_roundings(
            recording, trace, plain, {end: f"{end.path}.scale" for end in ends}
        ),
        "decayed": branch_probes.otherwise_without_decay(recording, trace, multipliers),
    }
