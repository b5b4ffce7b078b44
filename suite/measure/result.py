"""What the records say of pairs that were just measured: the row of one, the interaction of a stack and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.judge.interaction import Interaction, interaction_of
from suite.judge.rows import Row, row_of
from suite.measure.comparison import reference_steps
from suite.measure.plan import Pair, holding
from suite.record.schema import Record


def result_of(pair: Pair, records: Iterable[Record]) -> Row:
    """The pair's row. Raises NoRecord when there is none."""
    setting = pair.setting
    return row_of(records, setting.but(steps=reference_steps(setting)), pair.stack, pair.reference)


def result_of_stack(pairs: Sequence[Pair], records: Iterable[Record]) -> Interaction:
    """The interaction of the last pair's stack with the others', its parts, from the records that hold all together.

    Raises NoRecord when there is none.
    """
    together = holding(records, pairs)
    *parts, whole = (result_of(pair, together) for pair in pairs)
    return interaction_of(whole, parts)
