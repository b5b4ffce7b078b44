"""What a run of the tests leaves out, since it is as it was when it passed, and says so."""

from __future__ import annotations

import pytest

from suite.entries.catalogue import catalogue
from tests.techniques.own_tests import is_as_passed
from tests.techniques.tried_mutants import IN_EVERY_RUN, is_as_tried


def leave_unless_changed(id: str, request: pytest.FixtureRequest) -> None:
    """Skips an entry that is as it was when it was tried whole (``make mutants``), but for those of every run and for
    the one of ``--only``; LEANTRAIN_TESTS=all leaves none."""
    if id not in IN_EVERY_RUN and not request.config.getoption("--only") and is_as_tried(catalogue()[id]):
        pytest.skip("as it was when it was tried whole: LEANTRAIN_TESTS=all tries it again")


def leave_as_passed(item: pytest.Item) -> None:
    """Skips an entry's own tests where they are as they were when they passed (:mod:`tests.techniques.own_tests`), but
    for those of ``--only``; LEANTRAIN_TESTS=all leaves none."""
    if not item.config.getoption("--only") and is_as_passed(item.path):
        pytest.skip("all that it depends on is as it was when it passed: LEANTRAIN_TESTS=all runs it again")
