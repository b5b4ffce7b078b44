"""No broken variant of a technique keeps every exact verdict: neither without one of its methods nor with an edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from suite.entries.catalogue import Entry, catalogue
from suite.entries.installed import baselines
from suite.judge.claims import is_exact
from suite.measure.mutants import Deputies, mutants_of, noticed, processes
from suite.record.job import BASELINE
from tests.runs import IN_EVERY_RUN, unless

WRITTEN = 4
FEW = 3
WHERE = ("settings", "against", "within", "baselines", "recipes", "sizes", "devices")
"""What a claim says of where it can be judged."""


def ways_of(entry: Entry) -> set[str]:
    """What the harness may do otherwise for one entry than for another, as it tries and judges its mutants: the task,
    several ranks, a reference of its own, the methods that it takes away, edits elsewhere or with settings, and what
    an exact claim reads, and says of where it holds."""
    claims = [claim for claim in entry.card.judged if is_exact(claim)]
    mutants = mutants_of(entry)
    ways = {f"task {entry.card.task}", *(each.name for each in mutants if each.lacks)}
    ways |= {"another reference"} if entry.card.reference != BASELINE else set()
    ways |= {"an edit elsewhere" for each in mutants if each.module not in ("", entry.module)}
    ways |= {"an edit with settings" for each in mutants if each.old and each.settings}
    ways |= {f"metric {claim.metric.partition('.')[0]}" for claim in claims}
    return ways | {f"claim with {name}" for claim in claims for name in WHERE if getattr(claim, name)}


@pytest.fixture(scope="module")
def process() -> Iterator[Deputies]:
    """It counts each reference once for all techniques."""
    with processes(1) as one:
        yield one


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_entry_has_written_mutants_that_fit_its_source(name: str) -> None:
    assert sum(bool(each.old) for each in mutants_of(catalogue()[name])) >= WRITTEN, (
        "write mutants.toml beside the card"
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=unless(name in IN_EVERY_RUN)) for name in sorted(catalogue())]
)
def test_every_mutant_is_noticed(name: str, process: Deputies) -> None:
    entry = catalogue()[name]
    notices = list(noticed([entry], list(baselines()), process))
    assert [each.mutant.name for each in notices if each.survives] == []


def test_what_every_run_tries_goes_every_way_that_the_harness_has() -> None:
    """A way of one or two entries alone is tried with them alone."""
    users = Counter(way for entry in catalogue().values() for way in ways_of(entry))
    tried = set[str]().union(*(ways_of(catalogue()[id]) for id in IN_EVERY_RUN))
    assert {way for way, number in users.items() if number >= FEW} <= tried
    assert {"task pretrain", "task adapt", "no parallelize", "metric probe"} <= tried
