"""Runs one pass at attachment, so that a model that another attention does not fit is refused before it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from suite.loop.sites import Act
from suite.model.anatomy import Anatomy
from suite.model.attention import NotSwappable
from suite.model.calls import Forward, undisturbed


def try_out(parts: Anatomy, called: Mapping[str, Act], forward: Forward) -> None:
    """Passes some examples through the model, in evaluation, where no layer is dropped. It leaves no trace, and acts
    are counted from none.

    Args:
        parts: of a model whose attention is swapped already.
        called: the act of each block's attention, by the block's path.
        forward: makes the pass.

    Raises:
        NotSwappable: where the attention of a block did not compute by the function that stands there.
        ValueError: what that function, or the model, says of the other.
    """
    ran: set[str] = set()

    def noting(path: str) -> Callable[..., None]:
        return lambda *_: ran.add(path)

    with ExitStack() as stack:
        stack.enter_context(undisturbed(parts.model))
        for block in parts.attending_blocks:
            stack.callback(block.module.register_forward_pre_hook(noting(block.path)).remove)
        parts.model.eval()
        forward()
    left = [path for path, act in called.items() if not act.count]
    for act in called.values():
        act.count = 0
    if left:
        why = "computes the scores by code of its own" if left[0] in ran else "did not run for the examples of a batch"
        raise NotSwappable(
            f"the attention of {len(left)} of the {len(called)} blocks of {type(parts.model).__name__} would stay as "
            f"it is, as {left[0]} {why}: leave it as it is in all, or take another model"
        )
