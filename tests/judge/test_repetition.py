"""Rounding is told from a change: by what one unit in the last place does, and never where the bits must be equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.judge.repetition import SLACK, UNIT, envelope, repetition
from suite.record.numerics import NATIVE, PORTABLE
from suite.record.schema import Learned
from tests import factories

ELSEWHERE = factories.MACHINE.model_copy(update={"key": "e" * 16})


def learned(losses: list[float], **changes: object) -> Learned:
    return factories.learned("lion", **{"first_losses": losses, "numerics": NATIVE, **changes})


def test_the_envelope_never_shrinks_and_is_at_least_a_unit_in_the_last_place() -> None:
    nudged = [[2.0, 2.0002, 2.0], [2.0, 1.9999, 2.0]]
    assert envelope([2.0] * 3, nudged) == pytest.approx([SLACK * UNIT, SLACK * 1e-4, SLACK * 1e-4])


@given(st.lists(st.floats(1.0, 4.0), min_size=1, max_size=20), st.floats(0, 3), st.integers(0, 19))
def test_one_step_outside_the_envelope_is_a_change(losses: list[float], times: float, at: int) -> None:
    at %= len(losses)
    allowed = envelope(losses, [[each * (1 + 1e-6) for each in losses]])
    moved = [each * (1 + times * allowed[k]) if k == at else each for k, each in enumerate(losses)]
    seen = repetition(learned(losses, machine=ELSEWHERE), learned(moved), False, allowed)
    if abs(times - 1) > 1e-3:
        assert seen.equality == ("differs" if times > 1 else "equal up to rounding")
        assert seen.step == (at + 1 if times > 1 else 0)
        assert seen.distance == pytest.approx(times * allowed[at], rel=1e-6, abs=1e-15)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (learned([2.0], numerics=PORTABLE, machine=ELSEWHERE), learned([2.0], numerics=PORTABLE)),  # the same bits
        (learned([2.0]), learned([2.0])),  # the same machine
        (learned([], machine=ELSEWHERE), learned([2.0])),  # nothing was kept to compare
        (learned([2.0], machine=ELSEWHERE), learned([2.0], status="diverged")),
        (learned([2.0], machine=ELSEWHERE), learned([float("nan")])),
    ],
)
def test_what_is_not_equal_to_the_bit_where_it_must_be_differs(old: Learned, new: Learned) -> None:
    assert repetition(old, new, False, np.ones(1)).equality == "differs"
    assert repetition(old, new, True, np.ones(1)).equality == "equal to the bit"
