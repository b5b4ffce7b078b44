"""Runs the worker of one source tree in the regression gate: a process that runs jobs with that tree's code.

It is started as a script, with the tree to be judged first on the path, so the same worker drives both trees, also one
that is older than the worker; whatever it imports of ``suite`` is that tree's, hence inside the methods. One JSON
object a line comes in, and one goes out:

    {"do": "hello"}                        what this tree offers
    {"do": "count", "job": {...}}          exact counters and losses of a short run, under the arithmetic "numerics"
    {"do": "start", "job": {...}}          a contender, set up; {"do": "close"} ends it
    {"do": "pace", "steps": 2}             seconds of steps of it, without what its thread waited for a core
    {"do": "code", "job": {...}}           a hash of what the job's run reaches

An answer is {"done": ...} or {"failed": [status, reason]}. The worker ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.measure.contenders.contender import Contender

COUNTED_STEPS = 4  # optimizers make their state in the first; the rest is a trajectory to compare
LEARNED_AT_ONCE = 20  # steps, each of which must be done within REPLY_LIMIT_S
SEED = 0
REPLY_LIMIT_S = 300.0


class Worker:
    """Each method answers one command; ``job`` is a :class:`suite.record.job.Job` in JSON."""

    def __init__(self) -> None:
        self._contender: Contender | None = None

    def hello(self) -> dict[str, Any]:
        """Tells where the code comes from, its catalogue (technique id -> baselines, task, folder), and the arithmetic
        that it counts under, where it chooses one."""
        import suite as harness
        from suite.entries.catalogue import catalogue
        from suite.entries.installed import baselines

        cards = {}
        for name, entry in catalogue().items():
            with suppress(ValueError):  # a broken card is of no job
                cards[name] = entry.card
        return {
            "suite": os.path.dirname(os.path.abspath(harness.__file__)),
            "numerics": _off_the_clock(),
            "baselines": sorted(baselines()),
            "techniques": {
                name: {"baselines": card.baselines, "task": card.task, "folder": str(catalogue()[name].folder)}
                for name, card in cards.items()
            },
        }

    def count(self, job: dict[str, Any], numerics: str) -> dict[str, Any]:
        """Makes a short run and returns: its data, its losses, and the counters of one more step."""
        from suite.measure.provenance import conditions_of

        try:
            ready = self.start(job, numerics, counted=True)
            assert self._contender is not None
            losses = self._contender.block(ready["steps"]).losses
            counters = self._contender.count().model_dump()
            conditions = conditions_of(self._contender.job.setting)
        finally:
            self.close()
        return {"data_sha256": conditions.data_sha256, "losses": losses, "counters": counters}

    def learn(self, job: dict[str, Any], numerics: str) -> float:
        """Trains a whole run, and returns its loss on the test data."""
        try:
            steps = self.start(job, numerics)["steps"]
            assert self._contender is not None
            for done in range(0, steps, LEARNED_AT_ONCE):
                self._contender.block(min(LEARNED_AT_ONCE, steps - done))
            return float(self._contender.evaluate("test", steps).loss)
        finally:
            self.close()

    def start(self, job: dict[str, Any], numerics: str = "native", counted: bool = False) -> dict[str, Any]:
        """Starts and sets up a contender, whose steps may be ``counted``; answers its steps."""
        from suite.measure.contenders.contender import Contender, Limits
        from suite.record.job import Job

        self._contender = Contender(Job.model_validate(job), Limits(reply_s=REPLY_LIMIT_S), **_server(numerics)).start()
        self._contender.prepare()
        return {"steps": self._contender.set_up(counted=counted).steps}

    def pace(self, steps: int) -> float:
        """Returns the seconds of ``steps`` training steps without those in which the contender was ready to run and had
        no core: what a neighbour takes costs nothing, and a step that sleeps or waits for a disk costs all of it.

        Of its waits Linux's account has also those around the steps, so what is left is never less than the time that
        its threads computed for. Where there is no account, it is what the clock says.
        """
        assert self._contender is not None
        pid = self._contender._ranks[0].pid
        before_s = waited_s(pid)
        block = self._contender.block(steps)
        cores = max(self._contender.job.setting.threads, self._contender.world_size)
        return max(block.cpu_s / cores, block.seconds - (waited_s(pid) - before_s))

    def code(self, job: dict[str, Any]) -> str:
        """Returns a hash of all definitions that a run of the job may reach, also those that its functions import."""
        from suite.entries.sources import code_of
        from suite.record.job import Job

        known = Job.model_validate(job)
        return code_of(known.setting.but(device="cuda"), known.stack).trajectory

    def close(self) -> None:
        """Ends the contender, if there is one."""
        if self._contender is not None:
            self._contender.close()
            self._contender = None


def waited_s(pid: int) -> float:
    """Returns the seconds that the main thread of a process has waited for a core so far, by Linux's account; 0 where
    there is none."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _off_the_clock() -> str | None:
    """Returns the arithmetic that the tree counts under; None of one that knows no other than the machine's own."""
    try:
        from suite.record.numerics import off_the_clock
    except ImportError:
        return None
    return off_the_clock()


def _server(numerics: str) -> dict[str, Any]:
    """Returns the contender's option that says which arithmetic it has; none for a tree that knows no other than the
    machine's own."""
    if _off_the_clock() is None:
        return {}
    from suite.measure.contenders.fork_servers import shared

    return {"server": shared(numerics)}


NEWEST_PART = os.path.join("entries", "jobs.py")  # of the layout that the methods above import from
OLDER = f"it is older than the layout that this gate knows (it has no suite/{NEWEST_PART})"
COMMANDS = ("hello", "count", "learn", "start", "pace", "code", "close")


def main() -> None:
    """Answers until the input ends. What libraries print goes to standard error: the replies' channel stays clean."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    worker = Worker()
    try:
        for line in sys.stdin:
            replies.write(json.dumps(_answer(worker, json.loads(line))) + "\n")
            replies.flush()
    finally:
        worker.close()


def _answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    command = request.pop("do")
    try:
        if command not in COMMANDS:
            raise ValueError(f"no command is called {command!r}")
        if not _has_this_layout():
            return {"failed": ["unavailable", OLDER]}
        return {"done": getattr(worker, command)(**request)}
    except Exception as error:
        if hasattr(error, "status"):  # ContenderFailed
            return {"failed": [error.status, str(error)]}
        return {"failed": ["failed", f"{type(error).__name__}: {error}"]}


def _has_this_layout() -> bool:
    """Looks at the tree's files: an editable installation would lend an old tree the modules that it lacks."""
    import suite as harness

    return os.path.isfile(os.path.join(os.path.dirname(harness.__file__), NEWEST_PART))


if __name__ == "__main__":
    main()
