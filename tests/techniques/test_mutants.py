"""No broken variant of a technique keeps every exact verdict: neither without one of its methods nor with an edit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.measure.mutants import mutants_of, noticed, processes

WRITTEN = 4


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """It counts each reference once for all techniques."""
    with processes(1) as one:
        yield one


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_mutant_is_noticed(name: str, process: Executor) -> None:
    entry = catalogue()[name]
    assert sum(bool(each.old) for each in mutants_of(entry)) >= WRITTEN, "write mutants.toml beside the card"
    notices = list(noticed([entry], list(baselines()), process))
    assert [each.mutant.name for each in notices if each.survives] == []
