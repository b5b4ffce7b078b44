from suite.judge.metrics import COLUMNS
from suite.show.pages.board import quantity
from suite.show.terminal import summary
from tests.factories import evidence, row
from tests.show.samples import failing, shown


def test_every_number_is_said_or_why_there_is_none_and_the_answer_comes_last():
    said = summary(row("x", pace_s=0.03, probes={"x.rank": 4.0}))
    assert all(column.heading in said for column in COLUMNS)
    assert "no CUDA device" in said
    assert "x.rank" in said
    assert " ms → " in said
    assert "3 seeds, 3 timings" in said
    assert said.splitlines()[-1].startswith("x comes to the same quality later: 0.6")


def test_what_is_missing_is_said_with_the_command_that_measures_it():
    said = summary(row("x", replicates=0))
    assert "3 seeds, no timings" in said
    assert said.splitlines()[-1] == "missing: timings; measure with: leantrain compare x baseline -b gpt --steps 200"


def test_a_failure_and_what_is_unverified_are_said():
    (failed,) = shown(failing("x", "out_of_memory", "no room"))
    assert "out of memory while learning (seed 0): no room" in summary(failed)
    (changed,) = shown(evidence("x"), changed=["x"])
    assert "unverified: learned, timed: the code changed since; measure again" in summary(changed)


def test_quantities_have_three_digits_and_a_prefix():
    assert quantity(0.0212, "s") == "21.2 ms"
    assert quantity(4.19e6, "B") == "4.19 MB"
    assert quantity(2e11, "FLOP") == "200 GFLOP"
    assert quantity(0, "B") == "0 B"
    assert quantity(1.5, "s") == "1.5 s"
