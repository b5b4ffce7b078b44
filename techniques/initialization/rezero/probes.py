"""Tells what recorded steps show of ReZero: the first, in which every block is the identity, and the middle one, in
which gradients are those of a plain model without norms whose last layers of branches are multiplied by the residual
weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.model.anatomy import Block, anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.initialization.rezero.technique import ReZero
from techniques.initialization.shared import branch_probes
from techniques.shared.plain import names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each


def records(run: Run, own: ReZero) -> bool:
    """Tells whether it is the start, where residual weights are 0, or the middle, where none is."""
    return run.step in (0, run.recipe.steps // 2)


@judged("off_identity", "At initialisation every block is the identity.", "Equation 1", id="identity", scope="module")
@judged(
    "off_identity_jacobian",
    "At initialisation all singular values of the input-output Jacobian of the blocks are 1.",
    "Sections 3 and 5",
    id="dynamical_isometry",
    scope="module",
    note="the blocks; the embedding and the head are outside of them",
)
@judged(
    "branch_gradients",
    "At first the gradients of all parameters of the branches vanish.",
    "Section 1",
    id="gradients_vanish",
)
@judged(
    "silent_weights",
    "In the first step every residual weight has a gradient.",
    "Section 3",
    id="weights_learn",
    baselines=["gpt", "bert", "vit"],
    note=(
        "a masked auto-encoder's encoder has none yet: while its decoder is the identity, no shown patch reaches a "
        "hidden one"
    ),
)
@judged("norms", "No layer norm is left.", "Section 5", id="no_norm")
@judged("rate", "Training begins at the full learning rate.", "Section 5", id="no_warm_up", equals=1.0, tolerance=1e-9)
@judged(
    "gradient_roundings",
    "Attention and MLP are multiplied by the layer's weight and nothing else is: the step's gradients are those of a "
    "model without norms whose last layers are so multiplied.",
    "Section 5, by the chain rule",
    id="both_branches",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged("decayed", "Residual weights have no weight decay.", "The recipes: vectors are left out of it", id="no_decay")
def probes(recording: Recording, own: ReZero) -> Mapping[str, float]:
    """``norms``, ``gradient_roundings`` and ``decayed`` are of the middle step, all others of the first. For a claim,
    ``added_per_block`` is the parameters more than the plain model has without its norms."""
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
    """Returns the name of a block's residual weight: a parameter that stands in several places has its first place's
    name."""
    names = [f"{end.path}.scale" for end in block.branches]
    return next((name for name in names if name in values), names[0])
