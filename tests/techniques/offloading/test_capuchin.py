"""Capuchin: what its plans are mixed of, and free times by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from suite.chain.chain import Chain, Link, Stage
from suite.chain.schedule import Value, every_input
from techniques.offloading.capuchin.technique import Capuchin, bytes_saved_per_second, capuchin, free_times, mixed
from techniques.offloading.shared.offloaded import candidates, leaving
from tests.chain.chains import chains
from tests.runs import new_run


@given(chains())
def test_mixtures_end_at_both_parents(chain: Chain):
    assert mixed(chain, candidates(chain), (), 1, 1) == leaving(chain, candidates(chain), 1, 1)
    assert mixed(chain, (), range(chain.depth), 1, 1) == every_input(chain.depth)


def test_free_time_and_bytes_per_second_by_hand():
    (chain,) = Capuchin().profile(new_run("gpt", size="pico", steps=4))
    link = Link(1e9, 2e9)
    size, stage = chain.stages[0].saved_bytes[0], chain.stages[0]
    between_s = chain.plain_s - stage.save_s - stage.back_s
    assert free_times(chain, link)[Value(0, 0)] == pytest.approx(between_s - size / 1e9 - size / 2e9)
    assert bytes_saved_per_second(chain, 0) == sum(stage.saved_bytes) / stage.run_s


def test_the_cheaper_for_each_byte_is_taken_and_not_the_cheaper():
    """Moving 100 bytes shows for 10 s; running again what saves 4 bytes takes 1 s, and is not enough."""

    def stage(run_s: float, saved: int) -> Stage:
        return Stage(run_s, run_s, 1.0, 1, (saved,), run_peak_bytes=1, save_peak_bytes=1 + saved, back_peak_bytes=1)

    schedule = capuchin(Chain((stage(100.0, 100), stage(1.0, 4)), 1), 105, Link(20.0, 20.0))
    assert schedule.extra_forwards == 0
    assert {op.value for op in schedule.ops if op.kind == "offload"} >= {Value(0, 0)}
