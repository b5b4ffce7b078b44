"""A mutant runs in a process of its own; a claim notices what it is about, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from suite.entries.catalogue import Entry, catalogue
from suite.measure import mutants
from suite.measure.mutants import Mutant, mutants_of
from tests import plugin

BODY = """\
    backwards: bool = False

    def recipe(self, recipe):
        import dataclasses
        if self.backwards:
            return dataclasses.replace(recipe, learning_rate=recipe.learning_rate / 2, weight_decay=0.5)
        return dataclasses.replace(recipe, learning_rate=2 * recipe.learning_rate)

    def after_step(self, run):
        self.steps = run.step

    def probes(self, run):
        plain = run.baseline.recipe_of(run.job.setting).learning_rate
        return {"rate": run.recipe.learning_rate / plain, "decay": run.recipe.weight_decay}
"""
CLAIM = """
[[claim]]
id = "rate"
statement = "Twice the rate."
read = "here"
metric = "probe.twice.rate"
scope = "step"
kind = "identity"
expected = 2.0
absolute = true
tolerance = 0.0

[[claim]]
id = "decay"
statement = "A decay."
read = "here"
metric = "probe.twice.decay"
scope = "step"
kind = "identity"
expected = 0.0
relation = ">"
absolute = true
"""
EDITS = """
[[mutant]]
name = "thrice"
old = "2 * recipe"
new = "3 * recipe"

[[mutant]]
name = "not half"
settings = "backwards=true"
old = "recipe.learning_rate / 2"
new = "recipe.learning_rate / 4"

[[mutant]]
name = "no decay"
settings = "backwards=true"
old = "weight_decay=0.5"
new = "weight_decay=0.0"

[[mutant]]
name = "it raises"
old = "self.steps = run.step"
new = "raise ArithmeticError('broken on purpose')"
"""
FOLDER = Path("planted_faults", "planted", "twice")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planted")
    folder = plugin.write(root, {"twice": BODY}) / FOLDER
    with (folder / "card.toml").open("a") as card:
        card.write(CLAIM)
    (folder / "mutants.toml").write_text(EDITS)
    return root


def test_what_a_claim_is_about_it_notices_and_the_rest_survives(planted: Path) -> None:
    done = plugin.leantrain(planted, "claims", "twice", "--mutants", "--json")
    assert done.returncode == 1, done.stderr
    by_name = {each["mutant"]: each for each in json.loads(done.stdout)}
    assert {name: (each["claims"], each["error"]) for name, each in by_name.items()} == {
        "no recipe": (["rate on gpt"], ""),
        "no after_step": ([], ""),
        "thrice": (["rate on gpt"], ""),
        "not half": ([], ""),
        "no decay": (["decay on gpt"], ""),
        "it raises": ([], "ArithmeticError: broken on purpose"),
    }
    survivors = {name for name, each in by_name.items() if each["survives"]}
    assert survivors == {"no after_step", "not half"}, "the claim of the rate is not of these settings"


def test_a_method_goes_with_the_settings_that_need_it(planted: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(planted, tmp_path / "planted"))
    written = root / FOLDER / "mutants.toml"
    written.write_text('[settings]\nrecipe = "backwards=true"\n')
    done = plugin.leantrain(root, "claims", "twice", "--mutants", "--json")
    by_name = {each["mutant"]: each["claims"] for each in json.loads(done.stdout)}
    assert by_name == {"no recipe": [], "no after_step": []}, "the claim of the rate is not of these settings"


def test_a_claim_that_does_not_hold_of_the_whole_technique_notices_nothing(planted: Path) -> None:
    card = planted / FOLDER / "card.toml"
    text = card.read_text()
    card.write_text(text.replace("expected = 2.0", "expected = 5.0"))
    done = plugin.leantrain(planted, "claims", "twice", "--mutants")
    card.write_text(text)
    assert done.returncode == 2
    assert "twice as it is: rate on gpt; mend that before trying mutants" in done.stderr


def test_an_edit_that_fits_no_place_is_refused(tmp_path: Path) -> None:
    lion = catalogue()["lion"]
    (tmp_path / "mutants.toml").write_text('[[mutant]]\nname = "stale"\nold = "no such line"\nnew = ""\n')
    with pytest.raises(ValueError, match=r"stale: its old text is 0 times in techniques\.optimizers\.lion\.technique"):
        mutants_of(Entry(lion.id, tmp_path, lion.module))


def test_settings_of_a_method_that_it_has_not_are_refused(tmp_path: Path) -> None:
    lion = catalogue()["lion"]
    (tmp_path / "mutants.toml").write_text('[settings]\nloss = "beta1=0.5"\n')
    with pytest.raises(ValueError, match="settings for loss, which it does not override"):
        mutants_of(Entry(lion.id, tmp_path, lion.module))


def test_the_harness_itself_is_no_place_for_an_edit(tmp_path: Path) -> None:
    lion = catalogue()["lion"]
    edit = '[[mutant]]\nname = "blind"\nmodule = "suite.model.anatomy"\nold = "def anatomy("\nnew = "def other("\n'
    (tmp_path / "mutants.toml").write_text(edit)
    with pytest.raises(ValueError, match=r"blind: suite\.model\.anatomy is the harness"):
        mutants_of(Entry(lion.id, tmp_path, lion.module))


def test_mutants_are_tried_at_pico_or_where_their_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[str] = []
    monkeypatch.setattr(mutants, "_break", lambda mutant: None)
    monkeypatch.setattr(mutants, "exact_verdicts", lambda cards, on, size, settings: sizes.append(size) or [])
    for name in ("lion", "progressive_stacking"):
        mutants._notice(Mutant(name, "as it is"), "gpt")
    assert sizes == ["pico", "nano"]
