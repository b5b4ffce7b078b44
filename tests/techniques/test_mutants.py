"""No broken variant of a technique keeps every exact verdict: neither without one of its methods nor with an edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from suite.entries.catalogue import Entry, catalogue
from suite.entries.installed import baselines
from suite.measure.mutants import Deputies, mutants_of, noticed, processes
from tests.techniques.left_out import leave_unless_changed
from tests.techniques.tried_mutants import (
    IN_EVERY_RUN,
    changed_on,
    is_as_noticed,
    is_as_tried,
    kept,
    sha256_on,
    ways_of,
)

WRITTEN = 4
FEW = 3


@pytest.fixture(scope="module")
def process() -> Iterator[Deputies]:
    """It counts each reference once for all techniques."""
    with processes(1) as one:
        yield one


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_mutant_is_noticed(name: str, process: Deputies, request: pytest.FixtureRequest) -> None:
    """Tried anew where the technique, its claims or its probes changed since they were noticed (``tried_mutants``)."""
    entry = catalogue()[name]
    assert sum(bool(each.old) for each in mutants_of(entry)) >= WRITTEN, "write mutants.toml beside the card"
    leave_unless_changed(name, request)
    notices = list(noticed([entry], list(baselines()), process))
    assert [each.mutant.name for each in notices if each.survives] == []


def test_what_every_run_tries_goes_every_way_that_the_harness_has() -> None:
    """A way of one or two entries alone is tried where these change."""
    users = Counter(way for entry in catalogue().values() for way in ways_of(entry))
    tried = set[str]().union(*(ways_of(catalogue()[id]) for id in IN_EVERY_RUN))
    assert {way for way, number in users.items() if number >= FEW} <= tried
    assert {"task pretrain", "task adapt", "no parallelize", "metric probe"} <= tried


def as_tried(id: str, on: str, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """An entry that was tried as it is now, and all of whose mutants were noticed on one baseline."""
    entry = catalogue()[id]
    shas = {name: sha256_on(entry, name) for name in entry.card.baselines}
    noticed_on = {on: {each.name: "noticed" for each in mutants_of(entry)}}
    monkeypatch.setitem(kept(), id, {"sha256": shas, "noticed": noticed_on})
    assert is_as_tried(entry)
    return entry


def test_another_card_or_another_list_of_mutants_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = as_tried("lion", "gpt", monkeypatch)
    entry = Entry(whole.id, whole.folder, whole.module)
    entry.__dict__["card"] = whole.card.model_copy(update={"claim": (), "properties": ()})
    assert not is_as_tried(entry)
    said_otherwise = [
        each.model_copy(update={"statement": "other words", "note": "a note"}) for each in whole.card.claim
    ]
    entry.__dict__["card"] = whole.card.model_copy(update={"claim": tuple(said_otherwise)})
    assert is_as_tried(entry)
    there = next(iter(kept()[whole.id]["noticed"].values()))
    name, sentence = there.popitem()
    assert not is_as_tried(whole)
    there[name] = sentence
    assert is_as_tried(whole)


def test_a_change_on_one_baseline_leaves_what_was_noticed_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = "gpt", "bert"
    whole = as_tried("lion", here, monkeypatch)
    shas = kept()[whole.id]["sha256"]
    monkeypatch.setitem(shas, elsewhere, "another")
    assert changed_on(whole) == [elsewhere] and is_as_noticed(whole) and not is_as_tried(whole)
    monkeypatch.setitem(shas, here, "another")
    assert not is_as_noticed(whole)
