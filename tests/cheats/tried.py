"""Tries planted cheats where their plug-in is installed: ``tried.py learn|time BASELINE,... NAME...`` prints their ends
as JSON, by name, and by baseline if there are several: status, reason, and operators whose FLOPs were not counted."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from suite.measure.learning import learn_all
from suite.measure.timing import Protocol, time_together
from suite.record.job import Job, Setting

HONEST = "plays_by_the_rules"
TRIED_S = 600


def installed(root: Path) -> Path:
    """Writes the plug-in of all that is planted, and of what plays by the rules."""
    from tests import plugin
    from tests.cheats import planted

    bodies = {**planted.UNSEEN, **planted.MISREPORTED, **{name: body for name, (body, _) in planted.CHEATS.items()}}
    return plugin.write(root, {HONEST: "pass"} | {name: textwrap.dedent(body) for name, body in bodies.items()})


def ends(root: Path, how: str, names: Sequence[str], *on: str) -> dict[str, list[str]]:
    """The ends of what is tried ``on`` baselines, by default gpt, in a process with the plug-in below ``root``."""
    from tests import plugin

    done = subprocess.run(
        [sys.executable, str(Path(__file__)), how, ",".join(on) or "gpt", *names],
        env=plugin.environment(root),
        cwd=root,
        capture_output=True,
        text=True,
        timeout=TRIED_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def main(how: str, on: list[str], names: list[str]) -> None:
    ended: dict[str, list[str]] = {}
    settings = [Setting(baseline=each, size="pico", recipe="classic", steps=20) for each in on]
    if how == "learn":
        for job, learned in learn_all([Job(setting=each, stack=name) for each in settings for name in names]):
            key = job.stack if len(on) == 1 else f"{job.stack} of {job.setting.baseline}"
            ended[key] = [learned.status, learned.reason, *learned.uncounted_operators]
    else:
        timed = time_together(settings[0].but(steps=60), ["baseline", *names], 0, Protocol(rounds=6))
        ended = {side.stack: [side.status, side.reason] for side in timed.contenders}
    print(json.dumps(ended))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
