"""Tells what recorded steps show of SkipInit: the first, in which every block is the identity, and the middle one, in
which gradients are those of a plain model without norms whose last layers of branches are multiplied by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.initialization.shared import branch_probes
from techniques.initialization.skipinit.technique import SkipInit
from techniques.shared.plain import names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose branches end in a linear layer each


def records(run: Run, own: SkipInit) -> bool:
    """Tells whether it is the start, where multipliers are 0, or the middle, where none is."""
    return run.step in (0, run.recipe.steps // 2)


@judged("off_identity", "At initialisation every block is the identity.", "Section 4", id="identity", scope="module")
@judged(
    "off_identity_jacobian",
    "The Jacobian of the blocks is the identity, too.",
    "Section 4",
    id="identity_jacobian",
    scope="module",
)
@judged(
    "branch_gradients",
    "In the first step no parameter of a branch but its multiplier has a gradient.",
    "Section 4, by the chain rule",
    id="multipliers_alone_first",
)
@judged(
    "silent_multipliers",
    "In the first step every multiplier has a gradient.",
    "Section 4",
    id="multipliers_learn",
    baselines=["gpt", "bert", "vit"],
    note=(
        "a masked auto-encoder's encoder has none yet: while its decoder is the identity, no shown patch reaches a "
        "hidden one"
    ),
)
@judged(
    "variance_growth",
    "With multipliers of one over the square root of the number of branches the stream's variance grows by a constant "
    "at any depth: at most e.",
    "Sections 3 and 4: (1 + 1/L)^L < e, for branches that keep the variance",
    id="bounded_variance",
    at_most=2.72,
    scope="module",
    note=(
        "the first weights, with all multipliers set so; branches that start no larger than what they get, as the "
        "baselines' do"
    ),
)
@judged("norms", "No layer norm is left.", "Section 4", id="no_norm")
@judged(
    "gradient_roundings",
    "Each branch is multiplied by its number and nothing else is: the step's gradients are those of a model without "
    "norms whose last layers are so multiplied.",
    "Section 4, by the chain rule",
    id="each_branch",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged("decayed", "Multipliers have no weight decay.", "The recipes: vectors are left out of it", id="no_decay")
def probes(recording: Recording, own: SkipInit) -> Mapping[str, float]:
    """``norms``, ``gradient_roundings`` and ``decayed`` are of the middle step, all others of the first. For a claim,
    ``added_per_branch`` is the parameters more than the plain model has without its norms."""
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
