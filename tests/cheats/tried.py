"""Tries planted cheats where their plug-in is installed: ``tried.py learn|time BASELINE,... NAME...`` prints their ends
as JSON, by name, and by baseline if there are several: status, reason, and of what learned the hash of its losses and
the operators whose FLOPs were not counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

    names = [*planted.UNSEEN, *planted.MISREPORTED, *planted.CHEATS]
    (root / "earlier.bin").write_bytes(bytes(4096))  # as if an earlier run had left it
    os.utime(root / "earlier.bin", (0, 0))
    return plugin.write(root, {HONEST: "pass"} | {name: planted.body_of(name) for name in names})


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


def _job(setting: Setting, name: str, of_several: bool) -> Job:
    """The job of a name, which may say its baseline: ``NAME of vit``; else it is that of the setting, or, where no
    other is asked for, the one on which the cheat makes sense."""
    from tests.cheats import planted

    stack, _, own = name.partition(" of ")
    baseline = own or (setting.baseline if of_several else planted.ON.get(stack, setting.baseline))
    return Job(setting=setting.but(baseline=baseline), stack=stack)


def main(how: str, on: list[str], names: list[str]) -> None:
    ended: dict[str, list[str]] = {}
    settings = [Setting(baseline=each, size="pico", recipe="classic", steps=20) for each in on]
    if how == "learn":
        named = {_job(each, name, len(on) > 1): name for each in settings for name in names}
        for job, learned in learn_all(named):
            key = named[job] if len(on) == 1 else f"{job.stack} of {job.setting.baseline}"
            ended[key] = [learned.status, learned.reason, learned.trajectory_sha256, *learned.uncounted_operators]
    else:
        timed = time_together(settings[0].but(steps=60), ["baseline", *names], 0, Protocol(rounds=6))
        ended = {side.stack: [side.status, side.reason] for side in timed.contenders}
    print(json.dumps(ended))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
