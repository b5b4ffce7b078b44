"""Against other implementations: the rows stand apart from all others, with versions, and what is missing says why."""

from __future__ import annotations

from suite.entries.card import Card
from suite.record.job import join
from suite.record.schema import Timed
from suite.show.pages.rendered import as_markdown
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from suite.topics.peers import peers_on_board as peers
from tests.factories import MACHINE, evidence, rows, timings
from tests.show.samples import card, whole

INSTALLED = {"timm": "1.0.31", "lion_pytorch": "0.2.5", "torchao": None}


def beside(ours: str, theirs: str, pace_s: float, replicates: int = 3) -> list[Timed]:
    """Sets in which ours takes so long a step, and theirs 20 ms."""
    here = MACHINE.model_copy(update={"context": {"packages": INSTALLED}})
    sets = timings(ours, replicates, pace_s=pace_s, reference=theirs)
    return [each.model_copy(update={"machine": here}) for each in sets]


def lines() -> list[Timed]:
    updates = join([("lion", {"implementation": "timm", "part": "update"})])
    return [
        *beside("lion", "lion:implementation=timm", 0.02),
        *beside("lion:part=update", updates, 0.013),
    ]


def cards() -> dict[str, Card]:
    named = ("timm", "lion_pytorch", "torchao", "optax.lion")
    return {"lion": card("lion", "optimizers", "Lion").model_copy(update={"peers": named})}


def test_a_pair_with_a_package_is_in_no_other_row() -> None:
    timings = lines()
    ours, known = peers.apart(rows(evidence("lion"), timings), timings)
    assert [row.stack for row in ours] == ["lion"]
    step, updates = known
    assert [each.cells[1:3] for each in known] == [
        ("timm 1.0.31", "training step"),
        ("timm 1.0.31", f"{peers.UPDATES} updates alone"),
    ]
    assert step.technique == updates.technique == "lion" and updates.cells[4].startswith("0.651 [")


def test_updates_alone_lend_no_variance_to_training_steps() -> None:
    """Sets of updates alone scatter by ten per cent; those of training steps do not."""
    updates = join([("lion", {"implementation": "timm", "part": "update"})])
    noisy = [timing for pace in (0.01, 0.02, 0.04) for timing in beside("lion:part=update", updates, pace, 1)]
    noisy = [
        each.model_copy(update={"id": f"{number}{each.id}", "replicate": number}) for number, each in enumerate(noisy)
    ]
    alone, (with_them, *_) = rows(evidence("lion"))[0], rows(evidence("lion"), noisy)
    assert with_them.stack == "lion" and with_them.value("step_time") == alone.value("step_time")


def test_what_has_no_line_says_why() -> None:
    timings = lines()
    _, known = peers.apart(rows(timings), timings)
    (why,) = peers.missing(cards(), known).values()
    assert why == (
        "not installed where these were timed: torchao; not timed yet (leantrain run --peers -t lion): lion_pytorch; "
        "no contender runs it: optax.lion"
    )


def test_the_section_is_on_both_pages_and_only_where_something_was_timed() -> None:
    timings = lines()
    ours, known = peers.apart(rows(evidence("lion"), timings), timings)
    report = Report(rows=ours, peers=known, cards=cards())
    page, front = whole(html.render(report)), markdown.render(report)
    for text in (page, front):
        assert peers.TITLE in text and "0.651 " in text and "timm 1.0.31" in text
    section = peers.section(known, cards())
    assert section and "ours surely faster in 1 of 2 lines, surely slower in 0" in as_markdown(section)[2]
    nothing = Report(rows=ours, cards=cards())
    assert peers.TITLE not in html.render(nothing) + markdown.render(nothing)
