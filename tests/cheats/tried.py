"""Tries planted cheats where their plug-in is installed: ``tried.py learn|time NAME...`` prints their ends as JSON:
status, reason, and the operators whose FLOPs were not counted."""

from __future__ import annotations

import json
import sys

from suite.measure.learning import learn_all
from suite.measure.timing import Protocol, time_together
from suite.record.job import Job, Setting

SETTING = Setting(baseline="gpt", size="pico", recipe="classic", steps=20)


def main(how: str, names: list[str]) -> None:
    if how == "learn":
        ends = {
            job.stack: [learned.status, learned.reason, *learned.uncounted_operators]
            for job, learned in learn_all([Job(setting=SETTING, stack=name) for name in names])
        }
    else:
        timed = time_together(SETTING.but(steps=60), ["baseline", *names], 0, Protocol(rounds=6))
        ends = {side.stack: [side.status, side.reason] for side in timed.contenders}
    print(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
