"""What others measured, on a technique's page: found in the tables, said in words, with its source."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

from research.published_steps.published_rows import lines_of
from suite.entries.card import MeasuredByOthers
from suite.entries.catalogue import catalogue
from suite.show.pages.rendered import as_html, as_markdown
from suite.topics.by_others.by_others import AGREES, DISAGREES, lines_by_others, ratios_by_others
from suite.topics.by_others.by_others_on_page import section
from suite.topics.modelled_time.modelled import believed


def test_every_card_s_line_finds_rows_and_names_their_sources() -> None:
    cards = [entry.card for entry in catalogue().values() if entry.card.by_others]
    assert {"lora", "prefix_tuning", "prompt_tuning", "zero1", "fp8_hybrid"} <= {each.id for each in cards}
    for card in cards:
        assert len(lines_by_others(card.by_others)) == len(card.by_others), card.id
        shown = section(card)
        assert shown is not None
        page = unescape(as_html(shown))
        assert "better" not in page and "worse" not in page  # nothing modelled is coloured
        for line in lines_by_others(card.by_others):
            assert all(each.source in page for each in line.ratios)
            assert line.verdict in page
        assert "Measured by others" in "\n".join(as_markdown(shown))


def test_a_ratio_is_that_of_the_table_s_own_lines() -> None:
    of = MeasuredByOthers(table="llm_foundry_mpt", technique="fp8", against="none")
    found = ratios_by_others(of)
    by_hand = []
    lines = lines_of("llm_foundry_mpt")
    same = ("hardware", "gpus", "model", "sequence", "micro_batch", "global_batch", "activation_checkpointing")
    for a in (each for each in lines if each["precision"] == "amp_fp8"):
        for b in (each for each in lines if each["precision"] == "amp_bf16"):
            if all(a[name] == b[name] for name in same):
                by_hand.append(float(a["step_time_ms"]) / float(b["step_time_ms"]))
    assert len(by_hand) == 3 and sorted(each.measured for each in found) == pytest.approx(sorted(by_hand))
    assert all(each.change == "precision" and each.modelled and each.modelled < 1 for each in found)


def test_agreement_is_whether_the_measured_ratio_is_inside_the_band() -> None:
    found = ratios_by_others(MeasuredByOthers(table="fms_finetune_techniques", technique="lora", against="full"))
    known = next(each for each in found if each.modelled is not None)
    assert known.modelled is not None
    exact = replace(known, measured=known.modelled)
    assert exact.verdict == AGREES and exact.half_width == believed().bands[known.change].half_width
    least, most = 0.99 + exact.half_width, 1.01 + exact.half_width
    for factor, inside in ((least, True), (most, False), (1 / least, True), (1 / most, False)):
        assert replace(exact, measured=known.modelled * factor).inside == inside
    assert replace(exact, measured=2 * known.modelled).verdict.startswith(DISAGREES)
    assert any(each.peak and each.measured_peak for each in found)


def test_a_card_without_such_rows_has_no_section() -> None:
    assert section(catalogue()["adamw"].card) is None
