"""Every planted cheat ends as a failure that names the rule which it breaks; what plays by the rules does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.measure.rules import held_out, oversight
from tests import plugin
from tests.cheats import planted, tried

HONEST = "plays_by_the_rules"
TRIED_S = 600


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Status and reason of all, tried by two processes at once."""
    root = tmp_path_factory.mktemp("cheats")
    plugin.write(root, {HONEST: "pass"} | {name: body for name, (body, _) in planted.CHEATS.items()})
    asked = {"learn": [HONEST, *planted.LEARNED], "time": [HONEST, *planted.TIMED]}
    known: dict[str, list[str]] = {}
    for how, names in asked.items():
        done = subprocess.run(
            [sys.executable, str(Path(tried.__file__)), how, *names],
            env=plugin.environment(root), cwd=root, capture_output=True, text=True, timeout=TRIED_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        known |= {(how if name == HONEST else name): end for name, end in json.loads(done.stdout).items()}
    return known


def test_there_are_enough() -> None:
    assert len(planted.CHEATS) >= 16


@pytest.mark.parametrize("name", planted.CHEATS)
def test_a_cheat_is_caught_by_the_rule_that_it_breaks(name: str, ends: dict[str, list[str]]) -> None:
    status, reason = ends[name]
    rule = planted.CHEATS[name][1]
    either = {rule, oversight.PROCESSOR} if rule == oversight.CORES else {rule}  # on a busy machine it had one core
    assert status == "failed" and any(f"rule {each!r} is broken" in reason for each in either), (status, reason)


@pytest.mark.parametrize("how", ["learn", "time"])
def test_what_plays_by_the_rules_is_fine(how: str, ends: dict[str, list[str]]) -> None:
    assert ends[how] == ["ok", ""]


def test_a_part_of_a_shard_has_the_sum_of_the_same_bits_elsewhere() -> None:
    whole = torch.arange(12).bfloat16()
    parts = torch.nn.ParameterList([whole[1:5], whole[1:5].clone()])
    first, second = held_out.state_of(parts)
    assert first == second
