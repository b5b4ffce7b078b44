"""Ten questions of readers: each answer is on the page as it opens, or one click away, with the records' numbers."""

from __future__ import annotations

import re
from functools import cache

from markupsafe import Markup

from suite.topics.board import html
from suite.topics.board.board_findings import findings
from suite.topics.board.goals import GoalLine, tables
from suite.topics.board.standing import Standing
from suite.topics.by_others.by_others import lines_by_others
from tests.show.samples import whole
from tests.topics.board.test_findings import ROOT, committed, written


@cache
def page() -> str:
    return whole(html.render(committed()))


@cache
def lines() -> dict[str, GoalLine]:
    return {line.stack: line for table in tables(Standing.of(committed())) for line in table.lines}


def words(markup: str) -> str:
    return " ".join(Markup(re.sub(r"<[^>]+>", " ", markup)).unescape().split())


def row(stack: str) -> str:
    """The line of a technique in its goal's table."""
    return words(re.search(rf'<tr data-name="{stack}">.*?</tr>', page(), re.DOTALL)[0])  # type: ignore[index]


def opened(stack: str) -> str:
    """What a click on its name shows first: a technique's section, as far as nothing of it is folded."""
    own = re.search(rf'<details class="technique" id="technique-{stack}".*?</article>', page(), re.DOTALL)
    assert own, stack
    return words(own[0].partition("<details>")[0].partition("<article>")[2])


def said(title: str) -> str:
    """The finding of a title, as the page opens."""
    every = map(words, re.findall(r"<li><b>.*?</li>", page(), re.DOTALL))
    return next(one for one in every if one.startswith(f"{title}:"))


def test_does_lora_save_memory_and_how_much() -> None:
    at = lines()["lora"].at
    assert at is not None
    peak = round(100 * (1 - (at.ratio("peak_tensor_bytes") or 0)))
    assert f"peak memory, paper's size −{peak} %" in opened("lora") and peak > 5


def test_is_lion_worth_it_and_at_which_size() -> None:
    line = lines()["lion"]
    assert line.verdict.word in row("lion") and line.others.words in row("lion")
    assert re.search(r"at [\d.]+[MB]", row("lion")) and str(line.verdict) in opened("lion")


def test_what_does_checkpointing_cost_on_an_a100() -> None:
    line = lines()["ckpt_chen_sqrt"]
    assert line.time is not None and line.time.ratio
    low, high = line.time.band
    assert f"×{line.time.ratio:.2f} [{low:.2f}, {high:.2f}]" in row("ckpt_chen_sqrt")


def test_what_is_free() -> None:
    named = re.findall(r"(\w+) \(−(\d+) %, step ×([\d.]+)\)", said("Free memory"))
    assert named and all(float(ratio) <= 1 for _, _, ratio in named)
    assert all(lines()[name].saves.words == f"−{percent} %" for name, percent, _ in named)


def test_which_papers_did_not_hold_near_their_setting() -> None:
    failed = {
        f"{judgement.technique}.{judgement.claim.id}"
        for judgement in committed().verdicts
        if judgement.word == "contradicted"
    }
    assert f"{len(failed)} do not" in said("Papers' claims") and 'href="#claims"' in page()


def test_what_can_be_stacked_with_8_bit_adam() -> None:
    assert "leantrain stack adam8bit_blockwise+" in opened("adam8bit_blockwise")
    assert "what it excludes is refused in a sentence" in opened("adam8bit_blockwise")


def test_what_fits_a_7b_model_on_24_gb() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "leantrain recommend --model FOLDER --memory 24GB" in readme.partition("## Is my change")[0]


def test_who_measured_it_on_a_real_gpu() -> None:
    assert lines()["gpipe"].step.words == "" and "quality by others" in words(page().partition("</table>")[0])
    name = next(name for name, card in committed().cards.items() if lines_by_others(card.by_others))
    by_others = re.search(rf'id="technique-{name}".*?</article>', page(), re.DOTALL)
    assert by_others and "<summary>Measured by others</summary>" in by_others[0] and "GPU" in by_others[0]


def test_how_sure_are_you() -> None:
    standing = Standing.of(committed())
    (one,) = [found for found in findings(tables(standing), standing) if found.rule == "is_sure"]
    assert one.words.removeprefix("How sure: ") in said("How sure") and "controls" in one.words
    assert len(written("README.md")) >= 5


def test_how_do_i_run_it_on_my_model() -> None:
    assert 'leantrain.apply(model, "lion", batch=batch' in opened("lion") and "context.update(batch)" in opened("lion")
