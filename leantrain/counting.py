"""Counts bytes and FLOPs of a full-size training step, from Python."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from suite.entries.setting import DEVICES, chosen, setting_of, task_named
from suite.entries.together import built
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import Scale, SideBySide, side_by_side
from suite.show.counts import lines, notes, title

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Counted:
    """Holds a stack's step beside its reference's, counted; prints as a sentence and the numbers.

    Attributes:
        sides: ``sides.stack`` and ``sides.reference`` (None for the baseline itself) have ``quantities()`` by name.
    """

    sides: SideBySide

    def __repr__(self) -> str:
        reference, stack = self.sides.reference, self.sides.stack
        head = ("", reference.stack, stack.stack, "ratio") if reference else ("", stack.stack)
        grid = [head, *lines(self.sides)]
        widths = [max(len(line[place]) for line in grid) for place in range(len(head))]
        cells = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
                ]
            ).rstrip()
            for line in grid
        ]
        return "\n".join([title(self.sides), *cells, *notes(self.sides)])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(note)}</p>" for note in notes(self.sides))
        return f"<p>{escape(title(self.sides))}</p>{self.to_frame().to_html(na_rep='')}{said}"

    def to_frame(self) -> pd.DataFrame:
        """Returns a line for each quantity, by its name, with the columns ``reference``, ``stack`` and ``ratio``.

        Names end with their unit (``_bytes``, ``_count``); ``flops`` are floating-point operations of one step, and
        ``peak.<kind>`` are the bytes of each kind of tensor when all together take the most.
        """
        import pandas as pd

        ours, theirs = self.sides.stack.quantities(), self.sides.reference
        ratios = self.sides.ratios()
        columns = {
            "reference": pd.Series(theirs.quantities() if theirs else {}, dtype="Int64"),
            "stack": pd.Series(ours, dtype="Int64"),
            "ratio": pd.Series(ratios, dtype="float64"),
        }
        return pd.DataFrame(columns, index=pd.Index(list(ours), name="quantity"))


def count(
    stack: str,
    *,
    baseline: str = "gpt",
    size: str = "base",
    recipe: str = "modern",
    task: str | None = None,
    model: str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    ranks: int | None = None,
    steps: int = 2,
    device: str = "cuda",
) -> Counted:
    """Counts one training step of a stack and of its reference on tensors without values; as ``leantrain count``.

    Exact, in seconds, and without the step's memory: parameters, gradients, optimizer state, saved activations, the
    peak of all tensors by kind, FLOPs.

    Args:
        stack: a technique or a stack, ``"lora"`` or ``"lion+lora:rank=4"``; ``"baseline"`` is counted alone.
        baseline: as in :func:`leantrain.compare`; so are the next four.
        size: see there.
        recipe: see there.
        task: see there.
        model: see there.
        batch_size: examples a step; None for the baseline's.
        sequence_length: tokens a sequence, for text; None for the baseline's.
        ranks: processes that train together, each with the baseline's batch or its share of ``batch_size``, of which
            the first is counted; None for as many as the technique asks for.
        steps: a whole run of so many steps comes before the counted one.
        device: whose operators are counted: ``"cuda"``, a GPU's (none is needed), or ``"cpu"``.

    Raises:
        LookupError: for a name that does not exist, with the nearest ones.
        ValueError: for a stack that cannot be built, or a batch or sequence that does not fit the model.
        suite.loop.technique.Unavailable: if the step depends on values; it says where.
    """
    setting = setting_of(baseline=baseline, size=size, recipe=recipe, task=task, steps=steps, model=model)
    built(stack)
    scale = Scale(setting.but(device=chosen("device", device, DEVICES)), batch_size, sequence_length, ranks)
    (sides,) = side_by_side([stack], scale, task_named(task))
    if sides.stack.counters is None:
        raise Unavailable(f"{sides.stack.stack} cannot be counted: {sides.stack.unavailable}")
    return Counted(sides)
