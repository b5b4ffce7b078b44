"""Rounds are balanced, in random order, and every step is in exactly one block."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from suite.measure.contenders.lockstep import in_rounds, steps_of_blocks


@given(st.integers(0, 500), st.integers(1, 90))
def test_blocks_share_all_steps_nearly_equally(steps: int, blocks: int) -> None:
    parts = steps_of_blocks(steps, blocks)
    assert (len(parts), sum(parts)) == (blocks, steps)
    assert max(parts) - min(parts) <= 1


def test_a_rounds_second_half_is_the_reverse_of_its_first() -> None:
    ran: list[tuple[str, int]] = []

    def block(side: str, number: int) -> float:
        ran.append((side, number))
        return 1.0

    rounds = list(in_rounds("abc", 50, random.Random(0), block))
    assert [each.number for each in rounds] == list(range(50))
    for each, start in zip(rounds, range(0, 300, 6)):
        names = [side for side, _ in ran[start : start + 6]]
        assert names == [*each.order, *reversed(each.order)]
        assert {number for _, number in ran[start : start + 3]} == {2 * each.number}
        assert {number for _, number in ran[start + 3 : start + 6]} == {2 * each.number + 1}
        assert each.block_s == dict.fromkeys("abc", (1.0, 1.0))
    assert len({tuple(each.order) for each in rounds}) == 6


def test_a_side_that_fails_has_no_times_and_stops_nobody() -> None:
    def block(side: str, number: int) -> float | None:
        return None if side == "b" and number >= 3 else 1.0

    first, second = in_rounds("ab", 2, random.Random(1), block)
    assert set(first.block_s) == {"a", "b"}
    assert set(second.block_s) == {"a"}
