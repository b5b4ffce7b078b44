"""What recorded steps show of ReZero: the first, in which every block is the identity, and the middle one, in which
gradients are those of a plain model without norms whose last layers of branches are multiplied by the residual weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.model.anatomy import Block, anatomy
from suite.reading.recording import Recording
from techniques.initialization.rezero.technique import ReZero
from techniques.initialization.shared import branch_probes
from techniques.shared.plain import names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each


def records(run: Run, own: ReZero) -> bool:
    """The start, where residual weights are 0, and the middle, where none is."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: ReZero) -> Mapping[str, float]:
    """Of the first step: ``off_identity`` and ``off_identity_jacobian``, numbers that blocks, and stacks of them,
    change; ``branch_gradients``: parameters of blocks, the residual weights aside, with a gradient that is not 0;
    ``silent_weights``: residual weights without one; ``rate``: the learning rate over the recipe's without a warm-up;
    ``added_per_block``: parameters more than the plain model has without its norms.
    Of the middle step: ``norms``: layer norms that ran; ``gradient_roundings``: of its gradients from the plain
    model's; ``decayed``: residual weights that move otherwise without weight decay."""
    first, trace = recording.traces[0], recording.trace
    plain = branch_probes.without_layer_norms(plain_model(recording))
    blocks = anatomy(plain).every_block
    values = first.before.parameters
    paths = tuple(f"{block.path}." for block in blocks)
    inside = [theirs for name, theirs in names_in(plain, values).items() if name.startswith(paths)]
    weights = branch_probes.own_names(plain, values)
    with branch_probes.passing(recording, values, first) as stacks:
        off = branch_probes.off_identity(stacks), branch_probes.off_identity_jacobian(stacks)
    shared = {end: _weight(block, values) for block in blocks for end in block.branches}
    return {
        "off_identity": off[0],
        "off_identity_jacobian": off[1],
        "branch_gradients": len(inside) - branch_probes.without_gradient(first, inside),
        "silent_weights": branch_probes.without_gradient(first, weights),
        "rate": branch_probes.first_rate(recording, first),
        "added_per_block": branch_probes.added(plain, values) / len(blocks),
        "norms": branch_probes.layer_norms_run(recording, trace),
        "gradient_roundings": branch_probes.scale_gradient_roundings(recording, trace, plain, shared),
        "decayed": branch_probes.otherwise_without_decay(recording, trace, weights),
    }


def _weight(block: Block, values: Mapping[str, object]) -> str:
    """The name of a block's residual weight: a parameter that stands in several places has its first place's name."""
    names = [f"{end.path}.scale" for end in block.branches]
    return next((name for name in names if name in values), names[0])
