"""Whoever judges logs or reads records needs no torch; whoever needs it is told so in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = """
import json, sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "torchvision", "timm", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())
from typer.testing import CliRunner
from suite.cli import app
said = [CliRunner().invoke(app, line) for line in json.loads(sys.argv[1])]
print(json.dumps([[one.exit_code, one.output] for one in said]))
"""


def test_reading_and_judging_need_no_torch(tmp_path: Path) -> None:
    for name, loss in (("reference", 3.0), ("contender", 2.9)):
        (tmp_path / f"{name}.csv").write_text(f"step,loss\n100,{loss + 0.5}\n200,{loss}\n")
    sides = (f"--{name}={tmp_path / name}.csv" for name in ("reference", "contender"))
    fine = [["judge", *sides], ["leaderboard", "--json"], ["published", "lora"], ["list"]]
    needing = [["count", "-t", "lion", "-b", "gpt", "--size", "pico"], ["baselines"]]
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps([*fine, *needing])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in said] == [3, 0, 0, 0, 4, 4], said  # one run a side decides nothing
    assert all("needs torch: pip install leantrain" in text for _, text in said[len(fine) :])
