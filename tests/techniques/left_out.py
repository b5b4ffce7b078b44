"""What a run of the tests leaves out, since it is as it was when it passed or takes too long, and says so."""

from __future__ import annotations

import os
from functools import cache

import pytest

from suite.entries.catalogue import catalogue
from tests.techniques.own_tests import is_as_passed
from tests.techniques.tried_mutants import IN_EVERY_RUN, changed_on, is_as_noticed, is_as_tried, sha256_of

DRAWN = 6


def leave_unless_changed(id: str, request: pytest.FixtureRequest, baseline: str = "") -> None:
    """Skips an entry that is as it was when it was tried (``make mutants``) on ``baseline``, or without one where its
    mutants were noticed, and one that is not :func:`drawn`; but for those of every run and the one of ``--only``.
    LEANTRAIN_TESTS=all leaves none."""
    if id in IN_EVERY_RUN or request.config.getoption("--only"):
        return
    entry = catalogue()[id]
    if baseline not in changed_on(entry) if baseline else is_as_noticed(entry):
        pytest.skip("as it was when it was tried whole: LEANTRAIN_TESTS=all tries it again")
    if id not in drawn():
        pytest.skip(f"it changed: a run of the tests tries {DRAWN} of those that did, make mutants all of them")


@cache
def drawn() -> frozenset[str]:
    """The entries that a run of the tests tries, of those that changed since they were tried: all of them would take an
    hour where what every entry runs through has changed. Others are drawn when they change again."""
    changed = [entry for entry in catalogue().values() if not is_as_tried(entry)]
    if os.environ.get("LEANTRAIN_TESTS") == "all":
        return frozenset(entry.id for entry in changed)
    return frozenset(entry.id for entry in sorted(changed, key=sha256_of)[:DRAWN])


def leave_as_passed(item: pytest.Item) -> None:
    """Skips an entry's own tests where they are as they were when they passed (:mod:`tests.techniques.own_tests`), but
    for those of ``--only``; LEANTRAIN_TESTS=all leaves none."""
    if not item.config.getoption("--only") and is_as_passed(item.path):
        pytest.skip("all that it depends on is as it was when it passed: LEANTRAIN_TESTS=all runs it again")
