"""Interactions from records whose truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.interaction import Interaction, as_dict, interactions
from suite.judge.metrics import IN_STACKS
from suite.judge.rows import Row, pairs
from suite.record.schema import Outcome, Record
from suite.show import html, markdown, stacks
from suite.show.board import boards
from suite.show.report import Report
from tests import factories
from tests.factories import contender, counters, failure, record
from tests.show.test_html import EVIL, Page

SHORT = {"rounds": 3, "steps": 12}
TIMES = ("step_time", "training_time", "time_to_quality")


def run(stack: str, pace_s: float = 0.02, peak: int = 0, **changes: Any) -> Outcome:
    """A contender whose sources are its parts'."""
    if peak:
        changes["counters"] = counters(peak_tensor_bytes=peak)
    sources = dict.fromkeys([] if stack == "baseline" else stack.split("+"), "1" * 64)
    return contender(stack, pace_s=pace_s, **{"sources": sources, "noise": 0.0} | changes)


def of(records: Sequence[Record]) -> Interaction:
    (found,) = interactions(pairs(records))
    return found


def together(seeds: int, paces: Mapping[str, float], noise: float = 0.0, **changes: Any) -> list[Record]:
    """Replicates with processes that each differ by ``noise``; set-up is free, so that all costs are the pace's."""
    made = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, *map(ord, "".join(paces))])
        drift = np.exp(np.cumsum(0.02 * rng.standard_normal(factories.ROUNDS)))
        sides = [
            run(stack, pace * math.exp(noise * rng.standard_normal()), drift=drift, setup_s=0.0, rng=rng, **changes)
            for stack, pace in paces.items()
        ]
        made.append(record(sides, seed))
    return made


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=4), st.floats(0.3, 3.0))
def test_the_interaction_is_what_the_whole_costs_beyond_the_product_of_its_parts(
    costs: list[float], beyond: float
) -> None:
    parts = dict(zip("abcd", costs))
    whole = "+".join(parts)
    paces = {"baseline": 0.02, whole: 0.02 * math.prod(costs) * beyond} | {n: 0.02 * c for n, c in parts.items()}
    found = of([record([run(s, p, setup_s=0.0, **SHORT) for s, p in paces.items()], seed) for seed in range(2)])
    assert [row.stack for row in found.rows] == [*parts, whole]
    for metric in TIMES:
        assert found.values[metric].number == pytest.approx(beyond, rel=1e-9)
        assert as_dict(found)["interactions"][metric]["interaction"] == pytest.approx(-math.log(beyond), abs=1e-9)


def test_log_additive_costs_have_an_interval_around_zero_as_often_as_it_says() -> None:
    rng, trials, covered = np.random.default_rng(5), 60, 0
    for _ in range(trials):
        paces = {"baseline": 0.02, "a": 0.03, "b": 0.01, "a+b": 0.015}
        made = [
            record([run(s, p * math.exp(0.01 * rng.standard_normal()), **SHORT) for s, p in paces.items()], seed)
            for seed in range(3)
        ]
        log = of(made).values["step_time"].log
        assert log is not None
        covered += log.contains(0)
    assert stats.binom.cdf(covered, trials, 0.95) > 0.001


def test_a_real_interaction_is_seen_and_said_with_its_direction() -> None:
    slow = of(together(4, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.01}, noise=0.01))
    assert slow.reading("step_time") == "less together than they multiply to"
    gain = slow.values["step_time"].speedup
    assert gain is not None
    assert gain.high < 1
    assert gain.contains(0.5)
    fast = of(together(4, {"baseline": 0.02, "a": 0.02, "b": 0.02, "a+b": 0.01}, noise=0.01))
    assert fast.reading("step_time") == "more together than they multiply to"
    none = of(together(4, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.005}, noise=0.01))
    assert none.reading("step_time").startswith("none seen; one below ")
    assert of(together(1, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.01})).reading("step_time") == (
        "one seed: no interval"
    )


def test_bytes_multiply_exactly_or_do_not() -> None:
    def made(peak: int) -> Interaction:
        sides = [run("baseline", peak=900), run("a", peak=300), run("b", peak=600), run("a+b", peak=peak)]
        return of([record(sides, seed) for seed in range(2)])

    multiplied, less = made(200), made(300)
    assert (multiplied.values["peak_tensor_bytes"].kind, multiplied.values["peak_tensor_bytes"].number) == ("exact", 1)
    assert multiplied.reading("peak_tensor_bytes") == "they multiply exactly"
    assert less.values["peak_tensor_bytes"].number == 1.5
    assert less.reading("peak_tensor_bytes") == "less together than they multiply to, by exactly 33.33%"


def test_the_final_loss_is_paired_by_seed() -> None:
    finals = {"baseline": 2.0, "a": 1.9, "b": 1.8, "a+b": 1.71}  # 1.9 / 2 * 1.8 / 2 * 2
    made = [
        record([run(s, final=final * (1 + seed / 10)) for s, final in finals.items()], seed) for seed in range(3)
    ]  # the seeds differ by far more than the contenders
    log = of(made).values["loss"].log
    assert log is not None
    assert log.estimate == pytest.approx(0)
    assert log.half_width < 1e-12
    assert of(made).reading("loss") == "they multiply in every seed"


def test_a_quality_that_was_missed_and_a_part_that_failed_say_so() -> None:
    lossy = [record([run("baseline"), run("a", final=2.5), run("b"), run("a+b")], seed) for seed in range(2)]
    found = of(lossy)
    assert found.values["time_to_quality"].kind == "missed"
    assert found.reading("time_to_quality").startswith("a: ended 25.0% worse")
    assert found.values["step_time"].known
    (shown,) = stacks.stacks(boards(pairs(lossy)))
    assert shown.headline == "step_time"

    broken = [run("baseline"), run("a"), failure("b", "crashed", "exit code 7"), run("a+b")]
    found = of([record(broken, seed) for seed in range(2)])
    assert [row.stack for row in found.failed] == ["b"]
    told = json.loads(json.dumps(as_dict(found), allow_nan=False))["interactions"]["step_time"]
    assert (told["kind"], told["interaction"]) == ("unavailable", None)
    assert {found.reading(metric.name) for metric in IN_STACKS} == {"b has no numbers: crashed: exit code 7"}

    once = [record([run("baseline"), run("a"), run("b"), run("a+b")], seed) for seed in range(3)]
    once[1] = record([run("baseline"), run("a"), failure("b", "hung", ""), run("a+b")], 1)
    found = of(once)
    assert found.seeds == (0, 2)
    assert "all: 2 of 3 seeds: where all finished" in stacks.remarks(found)


def test_only_comparable_rows_belong_together() -> None:
    whole = [record([run("baseline"), run("a+b")], seed) for seed in range(2)]
    parts = [record([run("baseline"), run("a"), run("b")], seed) for seed in range(2)]
    assert not of([*whole, *parts]).together
    assert of([record([run("baseline"), run("a"), run("b"), run("a+b")], seed) for seed in range(2)]).together
    for unlike in (
        {"conditions": factories.conditions(size="micro")}, {"harness_sha256": "other"}, {"pairing": "sequential"},
        {"machine": factories.MACHINE.model_copy(update={"key": "other"})},
    ):  # fmt: skip
        assert not interactions(pairs([*whole, *(each.model_copy(update=unlike) for each in parts)]))
    changed = [record([run("baseline"), run("a", sources={"a": "2" * 64}), run("b")], seed) for seed in range(2)]
    assert not interactions(pairs([*whole, *changed]))
    assert not interactions(pairs(whole))


# the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lion+adamw"], "lion and adamw cannot be stacked: each replaces the optimizer"),
        (["lion"], "leantrain compare lion"),
        (["lion+lawa", "-b", "gtp"], "did you mean gpt"),
        (["zero1+lawa"], "an interaction needs one reference"),
    ],
)
def test_the_command_tells_usage_errors_in_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stack", *arguments, "--results", str(tmp_path / "results"), "--json"])
    assert done.exit_code == Exit.USAGE
    assert words in json.loads(done.stdout)["error"]
    assert not (tmp_path / "results").exists()


# shown ---------------------------------------------------------------------------------------------------------------


def some_rows() -> list[Row]:
    made = [
        record([run(each) for each in ("baseline", "a", "b", "c", "a+b", "c+a", "a+b+c")], seed) for seed in range(2)
    ]
    return pairs([*made, *factories.comparison("alone")])


def test_the_matrix_has_the_pairs_that_were_tried_and_the_table_has_all() -> None:
    (found,) = stacks.stacks(boards(some_rows()))
    assert (found.firsts, found.seconds) == (["a", "c"], ["a", "b"])
    tried = [[value is not None for value in line] for line in found.matrix]
    assert tried == [[False, True], [True, False]]
    assert found.headline == "time_to_quality"
    page = markdown.render(Report(some_rows()))
    section = page[page.index("## Stacks") :]
    assert [name in section for name in ("`a+b`", "`c+a`", "`a+b+c`")] == [True] * 3
    assert "alone" not in section
    assert "## Stacks" not in markdown.render(Report(pairs(factories.comparison("alone"))))


def test_the_page_s_section_is_sound_and_evil_names_stay_text() -> None:
    first, second = EVIL.replace(",", "").replace(":", ""), "b"
    names = ("baseline", first, second, f"{first}+{second}")
    rows = pairs([record([run(name) for name in names], seed) for seed in range(2)])
    page = Page(html.render(Report(rows)))
    assert {"href": "#stacks"} in page.having("a")
    assert len(page.having("script")) == 2
    assert not page.having("img")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {each["aria-labelledby"] for each in page.having("div") if "aria-labelledby" in each} <= set(ids)
    assert "Stacks" not in "".join(Page(html.render(Report(pairs(factories.comparison("alone"))))).words)


def test_the_terminal_table_has_the_parts_the_whole_and_the_interaction() -> None:
    found = of(together(3, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.01}, noise=0.001))
    head, lines = stacks.table(found)
    assert head[1:5] == ["a", "b", "a+b", "interaction"]
    step = next(line for line in lines if line[0].startswith("step time"))
    assert step[4].startswith("×0.5")
    assert len({len(line) for line in (head, *lines)}) == 1
