import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.contract.card import Card, Paper
from suite.contract.sources import Sources
from suite.judge.claims import ClaimPlace, Observation, judge
from suite.judge.rows import pairs
from suite.show.board import boards
from suite.show.markdown import code, escape, render
from suite.show.report import Report
from tests.factories import between, claim, comparison, conditions, contender, failure, record


def some_rows():
    failed = [record([contender(), failure("flash", "unavailable", "needs CUDA")], seed) for seed in range(3)]
    half = comparison("half")
    half[1] = record([half[1].reference, failure("half", "diverged", "the loss became nan")], 1)
    records = [
        *comparison("slow", pace_s=0.03), *comparison("fast", pace_s=0.01), *comparison("same"), *half, *failed,
        *comparison("lossy", final=2.4), *comparison("one", seeds=1),
    ]  # fmt: skip
    unchanged = dict.fromkeys(("fast", "same", "half", "flash", "lossy", "one"), "1" * 64)
    return pairs(records, Sources("h" * 64, {"gpt": "b" * 64}, {"slow": "changed", **unchanged}))


def test_techniques_stand_in_tiers_and_nothing_is_dropped():
    (board,) = boards(some_rows())
    assert [[row.stack for row in tier] for tier in board.tiers] == [["fast"], ["same"], ["slow"]]
    assert [row.stack for row in board.single] == ["one"]
    assert [row.stack for row in board.missed] == ["half", "lossy"]
    assert [row.stack for row in board.failed] == ["flash"]


def test_the_page_is_the_same_for_the_same_records_in_any_order():
    assert render(Report(some_rows())) == render(Report(some_rows()[::-1]))


def test_every_table_line_has_as_many_cells_as_its_head():
    tables = re.findall(r"(?:^\|.*\|$\n?)+", render(Report(some_rows())), re.MULTILINE)
    assert tables
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}) == 1


def test_what_of_the_catalogue_was_not_measured_is_named():
    card = Card(
        id="absent", name="", category="c", summary="", paper=Paper(title="", authors="", venue=""), baselines=()
    )
    cards = {"absent": card, "fast": card.model_copy(update={"id": "fast"})}
    page = render(Report(some_rows(), cards=cards))
    assert "- Not measured at all: 1 of 2 techniques of the catalogue: `absent`.\n" in page
    assert "Not measured" not in render(Report(some_rows(), cards={"fast": cards["fast"]}))


def test_failures_stale_rows_and_what_is_unavailable_say_why():
    page = render(Report(some_rows(), ["records.jsonl:3: not a record"]))
    assert "- `flash`: unavailable (seeds 0, 1, 2): needs CUDA" in page
    assert "2 of 3" in page
    assert "diverged (seed 1): the loss became nan" in page
    assert "| `slow`† |" in page
    assert "stale: slow changed" in page
    assert "CUDA peak: n/a (no CUDA device)." in page
    assert re.search(r"`lossy`: .*ended 2\d\.\d% worse", page)
    assert "could not be read and are left out: 1." in page


def test_other_conditions_are_other_boards():
    micro = [each.model_copy(update={"conditions": conditions(size="micro")}) for each in comparison("y")]
    titles = [board.title for board in boards(pairs([*comparison("x"), *micro]))]
    assert titles == [f"gpt · modern · {size} · pretrain · 200 steps" for size in ("micro", "nano")]


def test_without_records_it_says_what_to_do():
    assert "leantrain run" in render(Report())


EVIL = """<script>alert(1)</script>|`x`
| a | b |
# h [l](https://evil.example) <img src=x onerror=alert(1)> @you www.evil.example"""


def test_records_cannot_write_markup():
    rows = pairs([record([contender(), failure(EVIL, "crashed", EVIL)]), *comparison(EVIL)])
    page = render(Report(rows))
    assert "<script" not in page
    assert "<img" not in page
    assert "https://" not in page
    assert not re.search(r"(?<!\\)\[l\]", page)
    assert not re.search(r"^# h|^\| a", page, re.MULTILINE)


@given(st.text())
def test_escaped_text_is_one_line_without_live_markup(text):
    for made in (escape(text), code(text)):
        assert len(made.splitlines()) <= 1
        assert "<" not in made
        assert not re.search(r"(?<!\\)(\\\\)*\|", made.replace("\\\\", ""))


@pytest.mark.parametrize("name", ["lion", "lora:rank=4,alpha=0.5+sam", "dp_ddp"])
def test_ordinary_names_stay_readable(name):
    assert code(name) == f"`{name}`"


def test_claims_are_counted_and_shown_and_their_words_stay_words():
    evil = Observation(reason="<script>alert(1)</script> | `x`")
    judged = [
        judge(claim(), "fast", between(0.7, 0.75), ClaimPlace("gpt")),
        judge(claim(), "slow", evil, ClaimPlace("gpt")),
    ]
    page = render(Report(some_rows(), verdicts=judged))
    assert "## Claims of the papers\n\n1 reproduced; 1 not testable here." in page
    assert "| reproduced | `fast.a_claim` |" in page
    assert "<script" not in page
    section = page[page.index("## Claims") :].strip().splitlines()[4:]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in section}) == 1
    assert "Claims of the papers" not in render(Report(some_rows()))
