"""What `leantrain new` writes works as it is: it is found, its test passes, it trains, its claims notice mutants."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from suite.entries.scaffold import scaffold
from tests import plugin


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with no techniques yet; first on the path, it stands for the real one."""
    (tmp_path / "techniques").mkdir()
    (tmp_path / "techniques" / "__init__.py").touch()
    return tmp_path


def test_the_new_technique_trains_and_its_test_passes(checkout: Path) -> None:
    written = plugin.leantrain(checkout, "new", "my_idea", "--category", "thoughts")
    assert written.returncode == 0, written.stderr
    assert "python -m tests.golden my_idea --renew" in " ".join(written.stdout.split())
    listed = json.loads(plugin.leantrain(checkout, "list", "--json").stdout)
    assert [each["id"] for each in listed] == ["my_idea"]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        env=plugin.environment(checkout),
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert tested.returncode == 0, tested.stdout
    ran = plugin.leantrain(
        checkout,
        "run",
        "-t",
        "my_idea",
        "-t",
        "my_idea:factor=1.0",
        "-b",
        "gpt",
        "--size",
        "pico",
        "--recipe",
        "classic",
        "--steps",
        4,
        "--seeds",
        1,
        "--timings",
        1,
        "--results",
        "results",
    )
    assert ran.returncode == 0, ran.stderr
    losses = {each.stack: each.trajectory_sha256 for each in plugin.records(checkout / "results").learned}
    assert losses["my_idea:factor=1.0"] == losses["baseline"] != losses["my_idea"]


def test_the_new_claims_hold_and_notice_every_mutant(checkout: Path) -> None:
    """A technique's and an optimizer wrapper's, by the probes of the recorded step: the technique's other claim is the
    same of all mutants."""
    scaffold("my_idea", "thoughts", checkout)
    scaffold("my_wrapper", "thoughts", checkout, wraps_optimizer=True)
    of_one = ("claims", "my_idea.scaled_gradients", "--exact", "--size", "pico", "-b", "vit", "--json")
    held = plugin.leantrain(checkout, *of_one)  # on gpt they hold, or no mutant were tried there
    assert held.returncode == 0, held.stderr
    assert {each["outcome"] for each in json.loads(held.stdout)} == {"holds"}
    tried = plugin.leantrain(checkout, "claims", "--mutants", "-b", "gpt", "--json")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    all_notices: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for each in json.loads(tried.stdout):
        assert all(claim.endswith(" on gpt") for claim in each["claims"])
        all_notices[each["technique"]][each["mutant"]] = {claim.split()[0] for claim in each["claims"]}
    notices = all_notices["my_idea"]
    assert notices.pop("no after_backward") == set()  # an error notices that one: it did nothing at its sites
    assert len(notices) == 4
    assert all(claims == {"scaled_gradients"} for claims in notices.values()), notices
    notices = all_notices["my_wrapper"]
    assert notices.pop("no wrap_optimizer") == set()  # as above
    assert notices.pop("vectors, too") == {"less_its_means"} and notices.pop("after the step") == {"before_the_step"}
    assert len(notices) == 3 and all(names == {"less_its_means", "before_the_step"} for names in notices.values())


@pytest.mark.parametrize(("name", "category"), [("My", "ideas"), ("2x", "ideas"), ("a/b", "ideas"), ("a", "../up")])
def test_a_name_that_is_none_is_refused(checkout: Path, name: str, category: str) -> None:
    with pytest.raises(ValueError, match="use lower-case letters, digits and underscores"):
        scaffold(name, category, checkout)
    assert list(checkout.rglob("*.toml")) == []


def test_nothing_is_overwritten(checkout: Path) -> None:
    before = {path: path.read_text() for path in scaffold("idea", "ideas", checkout)}
    with pytest.raises(FileExistsError, match="choose another name"):
        scaffold("idea", "ideas", checkout)
    scaffold("other", "ideas", checkout)
    assert {path: path.read_text() for path in before} == before
