"""Many tries, live: ``python -m tests.numbers.live_tries DIR [--unchanged 60] [--loop 30] [--minutes 60]``.

A repository with one technique, and real calls of ``leantrain check --against HEAD --ledger``. *Unchanged*: each try
writes other code that does the same. *Loop*: the loop of docs/methods/tries.md, as that page has it, over changes that
do nothing, that take a busy loop out of the step, put one in, or train worse. What is in ``DIR`` stays and is gone on
with; no try begins after the ``minutes``. Ends with how many of which were kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests import plugin

BODY = """
WASTE = {waste}
GRADIENTS = {gradients}
def around_step(self, run):
    from contextlib import contextmanager
    @contextmanager
    def longer():
        began_s = time.process_time()
        yield
        spent_s = time.process_time() - began_s
        _ = {number}  # does nothing
        while time.process_time() - began_s < (1 + sum(self.WASTE)) * spent_s: pass
    return longer()
def loss(self, loss, outputs, batch, run): return loss * self.GRADIENTS
"""
BEGINNING: dict[str, Any] = {"waste": [0.3, 0.3, 0.3], "gradients": 1.0, "number": 0}
ASKED = ["-b", "gpt", "-t", "tried", "--size", "pico", "--recipe", "classic", "--faster", "10%"]
PAGE = plugin.TREE / "docs/methods/tries.md"
KINDS = ("nothing", "nothing", "slower", "nothing", "nothing", "worse", "nothing", "nothing", "nothing", "faster")
Attempt = Callable[[Callable[[], None]], str]


def written(root: Path, content: dict[str, Any]) -> None:
    """Has the working tree's technique be so."""
    (root / "content.json").write_text(json.dumps(content))
    plugin.write(root, {"tried": BODY.format(**content)})


def repository(root: Path) -> None:
    """Makes the repository, unless it is there."""
    if (root / ".git").exists():
        return
    root.mkdir(parents=True)
    written(root, BEGINNING)
    (root / ".gitignore").write_text("*.jsonl*\nsitecustomize.py\n__pycache__\n")
    who = ("-c", "user.name=tries", "-c", "user.email=tries@example.org")
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "the beginning"]):
        subprocess.run(["git", *command], cwd=root, check=True)


def changed(root: Path, kind: str, number: int) -> None:
    """Edits the working tree: so that it does the same by other code, or is faster, slower, or trains worse."""
    content = json.loads((root / "content.json").read_text()) | {"number": number}
    waste = content["waste"]
    others = {"faster": {"waste": waste[1:]}, "slower": {"waste": [*waste, 0.3]}, "worse": {"gradients": 1e-3}}
    written(root, content | others.get(kind, {}))


def attempt_of_the_page(minutes: str) -> Attempt:
    """Returns the page's own ``attempt``, with this repository's technique and the ``minutes`` in its command."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    here = code.replace('["leantrain", ', f'["{sys.executable}", "-m", "suite.cli", ')
    here = here.replace('"-b", "gpt", "-t", "baseline"', ", ".join(map(json.dumps, [*ASKED, "--minutes", minutes])))
    names: dict[str, Any] = {}
    exec(here, names)  # the page is what is tried
    attempt: Attempt = names["attempt"]
    return attempt


def unchanged(root: Path, minutes: str) -> str:
    """Tries the working tree, and keeps nothing of it."""
    command = [sys.executable, "-m", "suite.cli", "check", "--against", "HEAD", *ASKED, "--minutes", minutes]
    said = subprocess.run([*command, "--ledger", "same.jsonl", "--json"], stdout=subprocess.PIPE, text=True, cwd=root)
    subprocess.run(["git", "checkout", "-q", "."], cwd=root, check=True)
    return str(json.loads(said.stdout)["decision"])


def gone_on(root: Path, wanted: dict[str, int], minutes: str, end_s: float) -> None:
    """Makes the tries that are wanted and not there, by turns, until the time is over."""
    log = root / "tries_done.jsonl"
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = Counter(each["set"] for each in known)
    while time.monotonic() < end_s and (left := [name for name in wanted if done[name] < wanted[name]]):
        name = min(left, key=lambda each: done[each] / wanted[each])
        kind = KINDS[done[name] % len(KINDS)] if name == "loop" else "nothing"
        began_s = time.monotonic()
        number = 1 + sum(done.values())
        if name == "loop":
            decision = attempt_of_the_page(minutes)(partial(changed, root, kind, number))
        else:
            changed(root, kind, number)
            decision = unchanged(root, minutes)
        entry = {
            "set": name,
            "kind": kind,
            "decision": decision,
            "minutes": float(minutes),
            "seconds": round(time.monotonic() - began_s, 1),
        }
        with log.open("a") as file:
            file.write(json.dumps(entry | {"load": round(os.getloadavg()[0], 1)}) + "\n")
        done[name] += 1


def show(root: Path) -> None:
    """Prints how many of which were kept, discarded, undecided, as a table of a page."""
    known = [json.loads(line) for line in (root / "tries_done.jsonl").read_text().splitlines()]
    print("| tries | made | kept | discarded | undecided |\n|---|--:|--:|--:|--:|")
    for name, kind in dict.fromkeys((each["set"], each["kind"]) for each in known):
        ended = Counter(each["decision"] for each in known if (each["set"], each["kind"]) == (name, kind))
        cells = [ended.total(), ended["keep"], ended["discard"], ended["undecided"]]
        print(f"| {name}: {kind} | {' | '.join(map(str, cells))} |")
    seconds, loads = sorted(each["seconds"] for each in known), sorted(each["load"] for each in known)
    print(f"\nseconds of a try {seconds[0]:.0f} to {seconds[-1]:.0f}; load {loads[0]} to {loads[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.live_tries", description=(__doc__ or "")[:40])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--unchanged", type=int, default=60)
    parser.add_argument("--loop", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--of-a-try", default="4", metavar="MINUTES", help="what check may take for each")
    asked = parser.parse_args()
    end_s = time.monotonic() + 60 * asked.minutes
    root = asked.folder.resolve()
    repository(root)
    os.environ.update(plugin.environment(root))
    os.chdir(root)
    gone_on(root, {"unchanged": asked.unchanged, "loop": asked.loop}, asked.of_a_try, end_s)
    show(root)


if __name__ == "__main__":
    main()
