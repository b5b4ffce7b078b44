"""Peaks outside the blocks: a refusal says of what they are, how many bytes, and that no schedule helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config

from suite.chain.chain import Chain, Link, Stage
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, least, outside, planned, unplanned, why_no_schedule
from suite.chain.schedule import Schedule, every_input
from suite.chain.simulate import predicted
from suite.loop.sites import NotAttached
from suite.measure.at_scale.full_size import Scale, trained_at
from suite.record.job import Setting
from techniques.rematerialization.rotor.technique import Rotor
from tests.chain.chains import chains

BLOCK = Stage(1.0, 1.0, 2.0, 100, (400,), 110, 510, 120)
CHAIN = Chain((BLOCK,) * 4, 100, turn_peak_bytes=40)


class EveryInput:
    """A solver of one schedule."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        schedule = every_input(chain.depth)
        peak_bytes = predicted(schedule, chain).peak_bytes
        if peak_bytes > budget_bytes:
            raise Infeasible("every input", budget_bytes, peak_bytes)
        return schedule


def test_a_budget_below_what_is_outside_is_refused_with_of_what_that_is() -> None:
    behind = replace(CHAIN, outside_bytes=5_000_000, outside_of="behind the blocks, where add makes [9, 9]")
    between = replace(CHAIN, turn_peak_bytes=5_000_000, turn_of="before the loss, where log_softmax makes [9, 9]")
    for chain, of in ((behind, "where add makes"), (between, "where log_softmax makes")):
        with pytest.raises(Infeasible, match=rf"5 MB are alive outside the blocks \(.*{of}.*no schedule of them helps"):
            planned(Rotor(), [chain], 4_000_000)
    assert outside([behind]) == (5_000_000, behind.outside_of)


def test_a_refusal_says_whether_another_schedule_fits() -> None:
    low, high = least([CHAIN]).peak_bytes, predicted(every_input(4), CHAIN).peak_bytes
    assert low < high
    with pytest.raises(Infeasible, match=rf"its least is .*; another schedule fits, in {low / 1e6:.6g} MB") as error:
        planned(EveryInput(), [CHAIN], low)
    assert (error.value.least_bytes, error.value.other_bytes) == (high, low)
    with pytest.raises(Infeasible, match=r"its least is [^;]*; raise the budget, or shrink the batch$"):
        planned(EveryInput(), [CHAIN], low - 1)


@settings(max_examples=60, deadline=None)
@given(chains(most=3, any_ends=True))
def test_in_less_than_what_is_outside_no_schedule_at_all_fits(chain: Chain) -> None:
    assert fastest(chain, outside([chain])[0] - 1) == float("inf")


@given(chains(most=4), st.integers(0, 400))
def test_what_leaves_a_pass_as_it_is_is_told_apart(chain: Chain, outside_bytes: int) -> None:
    chain = replace(chain, outside_bytes=outside_bytes)
    peak_bytes = unplanned([chain]).peak_bytes
    assert "fits the budget" in why_no_schedule([chain], peak_bytes) or outside([chain])[0] >= peak_bytes
    below = why_no_schedule([chain], peak_bytes - 1)
    assert ("outside the blocks" in below) == (outside([chain])[0] >= peak_bytes)
    assert ("keep nothing" in below) == (outside([chain])[0] < peak_bytes)


@pytest.mark.parametrize("technique", ["rotor", "vdnn"])
def test_a_technique_that_can_do_nothing_says_what_the_peak_is(technique: str, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=5_000, n_embd=128, n_layer=2, n_head=2, architectures=["GPT2LMHeadModel"])
    config.save_pretrained(tmp_path)
    setting = Setting(baseline="gpt", size="pico", model=str(tmp_path))
    says = (
        rf"^{technique}: the peak of a pass, [\d.]+ MB, is outside the blocks "
        r"\(behind the first block's backward pass, where \w+ makes \[5000, 128\]\), and [\d.]+ MB in them: "
        "no schedule of the blocks lowers it"
    )
    with pytest.raises(NotAttached, match=says), trained_at(technique, Scale(setting, 1, 8)):
        pass
