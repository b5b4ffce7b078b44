"""A limit on a core's seconds: it ends what computes for ever, whatever that catches, and names the line that ran."""

from __future__ import annotations

import signal
import time

import pytest

from suite.measure.at_scale.full_size import Scale
from suite.measure.at_scale.processor_limit import OutOfTime, processor_limit
from suite.record.job import Setting
from suite.topics.modelled_time.aside import Aside, aside


def busy(rounds: float) -> int:
    number = 0
    while number < rounds:
        try:
            number += 1
        except Exception:  # as techniques that try something else
            number = 0
    return number


def test_what_takes_longer_ends_and_names_its_line() -> None:
    before = signal.getsignal(signal.SIGPROF)
    words = r"more than 0\.05 s of a core; .*topics/modelled_time/test_processor_limit\.py, line"
    with pytest.raises(OutOfTime, match=words), processor_limit(0.05):
        busy(float("inf"))
    assert signal.getsignal(signal.SIGPROF) == before


def test_what_only_waits_takes_nothing_and_what_is_done_is_left_alone() -> None:
    with processor_limit(0.05):
        time.sleep(0.2)
    with processor_limit(30):
        assert busy(10) == 10
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_a_count_that_takes_longer_says_where_it_was_and_the_next_one_is_made() -> None:
    scale = Scale(Setting(baseline="gpt", size="pico"))
    with aside() as apart:
        hurried = Aside(apart._deputy, core_s=0.05).counted("lion", scale)
        assert hurried.counters is None and hurried.failed
        assert "it takes more than 0.05 s of a core; when these were over it ran " in hurried.unavailable
        assert apart.counted("lion", scale).counters is not None
