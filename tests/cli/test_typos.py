"""A misspelt name is answered before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

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
    "plan --memory 24": "24 of what? Write 24GB or 24GiB, or 24B for bytes",
    "plan --memory 24GB --link 25": "25 of what?",
    "plan --memory 24GB --flops fast": "write 400T for 400 TFLOP/s",
    "study rotr": "no technique with a study is called 'rotr'; did you mean rotor",
    "models -t zz": "no technique is called 'zz'; the nearest of",
    "check -t lionn": "no technique is called 'lionn'; did you mean lion",
    "claims lionn": "no technique is called 'lionn'; did you mean lion",
    "leaderboard -t lionn": "no technique is called 'lionn'; did you mean lion",
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
