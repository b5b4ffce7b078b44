"""One side of the regression gate: a process that runs contenders of *its own* source tree, told what to do by lines.

It is started as a script, with the tree to be judged first on the path, so the same worker drives both sides and also
revisions that are older than the gate. One JSON object a line in, one out:

    {"do": "hello"}                        what this tree offers
    {"do": "count", "item": {...}}         exact counters and losses of a few steps
    {"do": "start", "item": {...}, ...}    a contender, set up; {"do": "block", ...} times steps of it; {"do": "close"}

An answer is {"done": ...} or {"failed": [status, reason]}. The worker ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.measure.contender import Contender

COUNTED_STEPS = 4  # optimizers make their state in the first; the rest is a trajectory to compare
SEED = 0
HANG_S = 300.0


class Worker:
    """Each method answers one command; ``item``: baseline, stack, size, recipe, task, device, threads."""

    def __init__(self) -> None:
        self._contender: Contender | None = None

    def hello(self) -> dict[str, Any]:
        """Where the code comes from, and its catalogue: technique id -> baselines, task, folder."""
        import suite
        from suite.contract.baseline import baselines
        from suite.contract.catalogue import catalogue

        return {
            "suite": os.path.dirname(os.path.abspath(suite.__file__)),
            "baselines": sorted(baselines()),
            "techniques": {
                name: {"baselines": entry.card.baselines, "task": entry.card.task, "folder": str(entry.folder)}
                for name, entry in catalogue().items()
            },
        }

    def count(self, item: dict[str, Any]) -> dict[str, Any]:
        """A short run from a fixed seed: its data, its losses, and the counters of one more step."""
        try:
            ready = self.start(item, COUNTED_STEPS, SEED)
            assert self._contender is not None
            losses = self._contender.block(ready["steps"])["losses"]
            counters = self._contender.finish()["counters"]
        finally:
            self.close()
        return {"data_sha256": ready["data_sha256"], "losses": losses, "counters": counters}

    def start(self, item: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
        """Starts and sets up a contender; its steps and data."""
        from suite.measure.comparison import Comparison
        from suite.measure.contender import Contender

        stack = item["stack"]
        comparison = Comparison(
            (stack,), item["baseline"], item["size"], item["recipe"], item["task"], steps, device=item["device"],
            threads=item["threads"],
        )  # fmt: skip
        self._contender = Contender(
            comparison.spec(stack, seed), world_size=comparison.world_size(stack), hang_s=HANG_S
        )
        self._contender.prepare()
        ready = self._contender.set_up()
        return {"steps": ready["steps"], "data_sha256": ready["data_sha256"]}

    def block(self, steps: int, slower: float = 0.0) -> float:
        """Seconds of ``steps`` training steps, with a real busy wait of the share ``slower`` of them added."""
        assert self._contender is not None
        seconds: float = self._contender.block(steps)["seconds"]
        start_s = time.perf_counter()
        while (waited_s := time.perf_counter() - start_s) < slower * seconds:
            pass
        return seconds + waited_s if slower else seconds

    def close(self) -> None:
        """Ends the contender, if there is one."""
        if self._contender is not None:
            self._contender.close()
            self._contender = None


COMMANDS = ("hello", "count", "start", "block", "close")


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
        return {"done": getattr(worker, command)(**request)}
    except Exception as error:
        if hasattr(error, "status"):  # ContenderFailed
            return {"failed": [error.status, str(error)]}
        return {"failed": ["failed", f"{type(error).__name__}: {error}"]}


if __name__ == "__main__":
    main()
