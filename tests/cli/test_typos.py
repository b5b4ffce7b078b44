"""A misspelt name is answered before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from suite.cli import app
from suite.entries.scaffold import plugin

TYPED = {
    "compare lionn -b gpt": "no technique is called 'lionn'; did you mean lion",
    "compare lion adamx": "no technique is called 'adamx'; did you mean adam",
    "compare lion -b gtp": "no baseline is called 'gtp'; did you mean gpt?",
    "compare lion --size nanoo": "no size is called 'nanoo'; did you mean nano?",
    "compare lion --recipe modrn": "no recipe is called 'modrn'; did you mean modern?",
    "compare lion --task adpt": "no task is called 'adpt'; did you mean adapt?",
    "compare lion --device gpu": "no device is called 'gpu'; did you mean cuda?",
    "compare lion+": "a + stands between two techniques",
    "stack lion+lawaa": "no technique is called 'lawaa'; did you mean lawa",
    "run -t lioon": "no technique is called 'lioon'; did you mean lion",
    "count -t loraa": "no technique is called 'loraa'; did you mean lora",
    "count -t lora --gpu A10-80": "no GPU is called 'A10-80'; did you mean A100-80",
    "plan --memory 24": "24 of what? Write 24GB or 24GiB, or 24B for bytes",
    "plan --memory 24GB --link 25": "25 of what?",
    "plan --memory 24GB --flops fast": "write 400T for 400 TFLOP/s",
    "study rotr": "no technique with a study is called 'rotr'; did you mean rotor",
    "models -t zz": "no technique is called 'zz'; the nearest of",
    "check -t lionn": "no technique is called 'lionn'; did you mean lion",
    "check --against main --slower 10": "--slower 10: of a step's time, so with its sign: --slower 10%",
    "check --against main --slower -5%": "--slower -5%: a slow-down is more than 0% and at most 100%",
    "check --against main --slower 0%": "--slower 0%: a slow-down is more than 0%",
    "check --against main --slower 120%": "--slower 120%: a slow-down is more than 0% and at most 100%",
    "check --against main --slower nan%": "--slower nan%: a slow-down is more than 0%",
    "check --against main --slower much": "--slower much: a percentage is wanted",
    "doctor -t lionn": "no technique is called 'lionn'; did you mean lion?",
    "baselines --power -t lionn": "no technique is called 'lionn'; did you mean lion?",
    "plan --memory 24GB --model ./nowhere": "--model ./nowhere: no config.json there",
    "count -t lion --model tests": "--model tests: no config.json there",
    "list adamx": "did you mean adam",
    "claims lionn": "no technique is called 'lionn'; did you mean lion",
    "leaderboard -t lionn": "no technique is called 'lionn'; did you mean lion",
    "history -t lionn": "no technique is called 'lionn'; did you mean lion",
    "repro zzzz": "no record begins with 'zzzz'",
    "plan --memory 24GB --model nofolder": "--model nofolder: neither a folder nor a timm model",
    "count -t lion -b vit --model vit_tini_patch16_224": "did you mean vit_tiny_patch16_224",
}
EACH = """
import json, sys
from typer.testing import CliRunner
from suite.cli import app
answers = {}
for line in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, line.split())
    answers[line] = (done.exit_code, " ".join(done.output.split()), "torch" in sys.modules)
print(json.dumps(answers))
"""


def test_a_typo_is_answered_before_torch_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", EACH, json.dumps([*TYPED])], capture_output=True, text=True)
    answers = json.loads(done.stdout)
    for line, words in TYPED.items():
        code, output, loaded = answers[line]
        assert (code, words in output, loaded) == (2, True, False), (line, output, loaded)


def _dense(text: str) -> str:
    """Without spaces, and the line breaks of a narrow terminal."""
    return "".join(text.split())


@pytest.mark.parametrize(
    "line", ["check --against HEAD", "check -t my_idea --save a", "compare my_idea", "list my_idea"]
)
def test_a_package_that_is_not_installed_is_to_be_installed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin("my_idea", "ideas", tmp_path)
    monkeypatch.chdir(tmp_path / "my_idea" / "tests")
    done = CliRunner().invoke(app, line.split())
    wanted = f"the techniques of {tmp_path / 'my_idea'} are not installed: pip install -e {tmp_path / 'my_idea'}"
    assert (done.exit_code, _dense(wanted) in _dense(done.output)) == (2, True), done.output


def test_a_package_comes_with_a_workflow_that_guards_it(tmp_path: Path) -> None:
    plugin("my_idea", "ideas", tmp_path)
    project = tmp_path / "my_idea"
    workflow = yaml.safe_load((project / ".github" / "workflows" / "leantrain.yml").read_text())
    checkout, action = workflow["jobs"]["check"]["steps"]
    assert checkout["with"] == {"fetch-depth": 0} and action["with"] == {"techniques": "my_idea"}
    inputs = yaml.safe_load((Path(__file__).parents[2] / "action" / "action.yml").read_text())["inputs"]
    assert {*action["with"]} <= {*inputs}
    assert "__pycache__/" in (project / ".gitignore").read_text().split()
