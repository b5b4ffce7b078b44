"""Amounts: what is written is read again."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from suite.record.amounts import amount_of, bytes_of


@given(st.floats(1, 9.9e14))
@example(999.6)  # which is 1 kB to three digits
def test_what_is_written_is_read_again_to_three_digits(nbytes: float) -> None:
    assert bytes_of(amount_of(nbytes)) == pytest.approx(nbytes, rel=0.005)


def test_units_are_a_thousand_of_each_other() -> None:
    assert [amount_of(each) for each in (1, 1500, 24e9, 80 * 2**30)] == ["1 B", "1.5 kB", "24 GB", "85.9 GB"]
