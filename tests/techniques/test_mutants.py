"""No broken variant of a technique keeps every exact verdict: neither without one of its methods nor with an edit."""

from __future__ import annotations

import pytest

from suite.contract.baseline import baselines
from suite.contract.catalogue import catalogue
from suite.measure.mutants import mutants_of, noticed

WRITTEN = 4


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_mutant_is_noticed(name: str) -> None:
    entry = catalogue()[name]
    assert sum(bool(each.old) for each in mutants_of(entry)) >= WRITTEN, "write mutants.toml beside the card"
    notices = list(noticed([entry], list(baselines())))
    assert [each.mutant.name for each in notices if each.survives] == []
