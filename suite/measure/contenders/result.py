"""What the evidence says of pairs that were just measured: the row of one, the interaction of a stack and its parts."""

from __future__ import annotations

from collections.abc import Sequence

from suite.judge.interaction import Interaction, interaction_of
from suite.judge.rows import Row, row_of
from suite.measure.evidence import conditions_of
from suite.measure.plan import Pair
from suite.record.store import Records


def result_of(pair: Pair, records: Records) -> Row:
    """The pair's row. Raises NoRecord when there is none."""
    steps = conditions_of(pair.setting).steps
    return row_of(records, pair.setting.but(steps=steps), pair.stack, pair.reference)


def result_of_stack(pairs: Sequence[Pair], records: Records) -> Interaction:
    """The interaction of the last pair's stack with the others', its parts. Raises NoRecord when there is none."""
    *parts, whole = (result_of(pair, records) for pair in pairs)
    return interaction_of(whole, parts)
