"""Tells what the evidence says of pairs that were just measured: the row of one, the interaction of a stack and its
parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from suite.judge.interaction import Interaction, interaction_of
from suite.judge.rows import Row, row_among, row_of, rows_against
from suite.measure.missing import Pair
from suite.measure.provenance import conditions_of
from suite.record.job import Setting
from suite.record.store import NoRecord, Records


def result_of(pair: Pair, records: Records) -> Row:
    """Returns the pair's row. Raises NoRecord when there is none."""
    return row_of(records, _with_steps(pair.setting), pair.stack, pair.reference)


def results_of(pairs: Sequence[Pair], records: Records) -> list[Row]:
    """Returns the row of each pair that has one. The records are judged once for each reference."""
    stacks: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        stacks[pair.reference].add(pair.stack)
    known = {reference: rows_against(records, reference, beside) for reference, beside in stacks.items()}
    results = []
    for pair in pairs:
        with suppress(NoRecord):
            results.append(row_among(known[pair.reference], _with_steps(pair.setting), pair.stack, pair.reference))
    return results


def _with_steps(setting: Setting) -> Setting:
    return setting.but(steps=conditions_of(setting).steps)


def result_of_stack(pairs: Sequence[Pair], records: Records) -> Interaction:
    """Returns the interaction of the last pair's stack with the others', its parts. Raises NoRecord when there is
    none."""
    *parts, whole = (result_of(pair, records) for pair in pairs)
    return interaction_of(whole, parts)
