"""Capuchin: what its plans are mixed of, and free times by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Value, every_input
from techniques.offloading.capuchin.technique import Capuchin, bytes_saved_per_second, free_times, mixed
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
