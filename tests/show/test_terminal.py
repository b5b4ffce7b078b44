from suite.judge.metrics import COLUMNS
from suite.judge.rows import pairs
from suite.show.board import quantity
from suite.show.terminal import summary
from tests.factories import comparison, contender, failure, record


def test_every_number_is_said_or_why_there_is_none():
    (row,) = pairs(comparison("x", pace_s=0.03, probes={"x.rank": 4.0}))
    said = summary(row)
    assert all(column.heading in said for column in COLUMNS)
    assert "no CUDA device" in said
    assert "x.rank" in said
    assert " ms → " in said


def test_a_failure_is_said():
    (row,) = pairs([record([contender(), failure("x", "out_of_memory", "no room")])])
    assert "out of memory (seed 0): no room" in summary(row)


def test_quantities_have_three_digits_and_a_prefix():
    assert quantity(0.0212, "s") == "21.2 ms"
    assert quantity(4.19e6, "B") == "4.19 MB"
    assert quantity(2e11, "FLOP") == "200 GFLOP"
    assert quantity(0, "B") == "0 B"
    assert quantity(1.5, "s") == "1.5 s"
