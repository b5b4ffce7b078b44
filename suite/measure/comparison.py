"""Contenders against each other, in lock-step, one replicate (seed) at a time.

::

    round 1                     round 2                     ...
    B A C | C A B               A C B | B C A
    order   its reverse         a new random order, its reverse

Every letter is a block of training steps of one contender; only one computes at a time. A contender's two blocks of a
round lie symmetrically about the round's centre, so a linear drift of the machine's speed cancels in the paired log
ratio d = 1/2 [(ln b1 + ln b2) - (ln a1 + ln a2)]. For two contenders this is the randomised ABBA/BAAB quad. All
contenders pass through the same number of rounds, each over its own number of steps. Evaluations lie between rounds and
on no clock.
"""

from __future__ import annotations

import inspect
import random
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import suite
from suite.contract.baseline import Baseline, RecipeName, Size, Task, baselines
from suite.contract.catalogue import UnknownId, build, catalogue, hash_files, lookup
from suite.contract.data import mixed_seed
from suite.contract.stack import StackError, split, written
from suite.measure.contender import Contender, ContenderFailed, RunSpec, failure
from suite.record.machine import fingerprint
from suite.record.schema import Conditions, EqualTime, Record
from suite.record.schema import Contender as Result

ROUNDS = 40
EVALUATIONS = 10
SAME_COST = 0.05  # step costs within this relative distance: equal steps are equal time
ENERGY_WINDOW_S = 20.0  # the energy counters update every 0.1 s: an edge error of at most 1 %

Progress = Callable[[float, str], None]
"""``progress(share, what)``: the finished share of the replicate in [0, 1] and what is being done."""


@dataclass(frozen=True)
class Comparison:
    """What is compared under which conditions. ``stacks[0]`` is the reference. ``steps`` are the reference's."""

    stacks: tuple[str, ...]
    baseline: str
    size: Size = "nano"
    recipe: RecipeName = "modern"
    task: Task = "pretrain"
    steps: int | None = None
    data: str | None = None
    model: str | None = None
    device: str = "cpu"
    threads: int = 1
    rounds: int = ROUNDS

    def spec(self, stack: str, seed: int) -> RunSpec:
        return RunSpec(
            self.baseline, stack, self.size, self.recipe, self.task, seed, self.steps, self.data, self.model,
            self.device, self.threads,
        )  # fmt: skip

    def base_steps(self) -> int:
        return (
            self.steps or lookup("baseline", self.baseline, baselines()).recipe(self.size, self.recipe, self.task).steps
        )

    def world_size(self, stack: str) -> int:
        """Ranks that the stack's recipe asks for. Also where a stack that cannot be built raises, in the parent."""
        recipe = lookup("baseline", self.baseline, baselines()).recipe(self.size, self.recipe, self.task)
        return build(stack).recipe(replace(recipe, steps=self.base_steps())).world_size


@dataclass
class Lane:
    """One contender while the replicate runs: its process and what it has produced so far."""

    stack: str
    process: Contender | None = None
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.process is not None and self.result.get("status", "ok") == "ok"

    def attempt(self, action: Callable[[Contender], Any]) -> Any:
        """``action`` on the process; a failure ends this lane alone, and becomes its status."""
        if self.process is None or not self.running:
            return None
        try:
            return action(self.process)
        except ContenderFailed as failure:
            self.end(failure)
            return None

    def end(self, failure: ContenderFailed) -> None:
        self.result |= {"status": failure.status, "reason": failure.reason, "details": failure.details}
        self.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


def replicate(
    comparison: Comparison,
    seed: int,
    *,
    progress: Progress = lambda share, what: None,
    limit_s: float = 3600.0,
    hang_s: float = 600.0,
    equal_time: bool = True,
    finish: bool = True,
    sequential: bool = False,
) -> Record:
    """Trains all contenders with one seed and returns the record.

    ``limit_s`` bounds each contender's time on its clock, ``hang_s`` each of its replies. ``sequential`` holds one
    contender in memory at a time, at the price of pairing; an out-of-memory among several on an accelerator falls back
    to it. ``finish`` takes the counters, ``equal_time`` the second runs whose schedules end when the reference's budget
    does. Raises UnknownId or StackError for a comparison that cannot be built, and nothing for what happens in a run.
    """
    record = _replicate(comparison, seed, progress, limit_s, hang_s, equal_time, finish, sequential)
    short = any(each.status == "out_of_memory" for each in record.contenders)
    if short and comparison.device != "cpu" and not sequential and len(comparison.stacks) > 1:
        return _replicate(comparison, seed, progress, limit_s, hang_s, equal_time, finish, True)
    return record


def _replicate(
    comparison: Comparison,
    seed: int,
    progress: Progress,
    limit_s: float,
    hang_s: float,
    equal_time: bool,
    finish: bool,
    sequential: bool,
) -> Record:
    started, start_s = datetime.now(UTC), time.monotonic()
    coin = random.Random(mixed_seed(seed, *map(ord, "".join(comparison.stacks))))
    spawn_order = coin.sample(range(len(comparison.stacks)), len(comparison.stacks))
    lanes = [Lane(stack, result={"stack": stack, "sources": sources_of(stack)}) for stack in comparison.stacks]
    worlds = []
    for lane in lanes:
        try:
            worlds.append(comparison.world_size(lane.stack))
        except (UnknownId, StackError):
            raise
        except Exception as error:  # the technique's recipe method runs in this process, and its failure is its row
            lane.end(ContenderFailed(*failure(error)))
            worlds.append(1)
    lock_step = _LockStep(comparison, lanes, coin, progress)
    data = ("", "")

    def count(process: Contender) -> dict[str, Any]:
        return process.finish(ENERGY_WINDOW_S if comparison.device != "cpu" else 0.0)

    try:
        groups = [[index] for index in spawn_order] if sequential else [spawn_order]
        for group in groups:
            for index in group:
                lane = lanes[index]
                if "status" in lane.result:
                    continue
                lane.process = Contender(
                    comparison.spec(lane.stack, seed), world_size=worlds[index], limit_s=limit_s, hang_s=hang_s
                )
            for index in group:
                progress(0.0, f"preparing {lanes[index].stack}")
                lanes[index].attempt(Contender.prepare)
            for index in group:
                if ready := lanes[index].attempt(Contender.set_up):
                    data = (ready.pop("data"), ready.pop("data_sha256"))
                    lanes[index].result |= ready
            lock_step.run([lanes[index] for index in group])
            for index in group:
                if finish:
                    progress(1.0, f"counting {lanes[index].stack}")
                    lanes[index].result |= lanes[index].attempt(count) or {}
                lanes[index].close()
        if equal_time:
            _equal_time(comparison, seed, lanes, worlds, progress, limit_s, hang_s)
    finally:
        for lane in lanes:
            lane.close()
    baseline = lookup("baseline", comparison.baseline, baselines())
    return Record(
        id=uuid.uuid4().hex,
        started=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - start_s,
        leantrain=version("leantrain"),
        conditions=Conditions(
            baseline=comparison.baseline,
            baseline_version=baseline.version,
            size=comparison.size,
            recipe=comparison.recipe,
            task=comparison.task,
            steps=comparison.base_steps(),
            data=data[0],
            data_sha256=data[1],
            model=comparison.model,
            device=comparison.device,
            threads=comparison.threads,
        ),
        machine=fingerprint(comparison.device, comparison.threads),
        harness_sha256=harness_sha256(),
        baseline_sha256=baseline_sha256(baseline),
        seed=seed,
        pairing="sequential" if sequential else "interleaved",
        spawn_order=spawn_order,
        orders=lock_step.orders,
        harness_s=lock_step.harness_s,
        contenders=[Result(**lane.result) for lane in lanes],
    )


class _LockStep:
    """Rounds of blocks over the lanes that are still running."""

    def __init__(self, comparison: Comparison, lanes: list[Lane], coin: random.Random, progress: Progress) -> None:
        self.comparison, self.all, self.coin, self.progress = comparison, lanes, coin, progress
        self.orders: list[list[int]] = []
        self.harness_s = 0.0

    def run(self, lanes: list[Lane]) -> None:
        ready = [lane for lane in lanes if lane.running]
        if not ready or not self._reference_lives(lanes):
            return
        rounds = max(1, min(self.comparison.rounds, *(lane.result["steps"] // 2 for lane in ready)))
        for lane in ready:
            lane.result |= {"block_s": [], "block_steps": [], "train_loss": [], "curve": [], "cpu_s": 0.0}
        self._evaluate(ready, 0)
        for number in range(rounds):
            order = self.coin.sample(ready, len(ready))
            self.orders.append([self.all.index(lane) for lane in order])
            start_s, busy_s = time.monotonic(), 0.0
            first = {id(lane): self._block(lane, 2 * number, rounds) for lane in order}
            for lane in reversed(order):
                second = self._block(lane, 2 * number + 1, rounds)
                before = first[id(lane)]
                if before and second:
                    busy_s += before["seconds"] + second["seconds"]
                    lane.result["block_s"].append((round(before["seconds"], 7), round(second["seconds"], 7)))
                    lane.result["block_steps"].append((before["steps"], second["steps"]))
            self.harness_s += time.monotonic() - start_s - busy_s
            if not self._reference_lives(lanes):
                return
            done = number + 1
            if done * EVALUATIONS // rounds > number * EVALUATIONS // rounds:
                self._evaluate(ready, done / rounds)
            self.progress(done / rounds, f"round {done} of {rounds}")

    def _block(self, lane: Lane, block: int, rounds: int) -> dict[str, Any] | None:
        total, blocks = lane.result["steps"], 2 * rounds
        steps = (block + 1) * total // blocks - block * total // blocks
        reply = lane.attempt(lambda process: process.block(steps))
        if reply:
            lane.result["train_loss"] += [float(f"{loss:.6g}") for loss in reply["losses"]]
            lane.result["cpu_s"] += reply["cpu_s"]
            return {"seconds": reply["seconds"], "steps": steps}
        return None

    def _evaluate(self, lanes: list[Lane], share: float) -> None:
        for lane in lanes:
            if scores := lane.attempt(Contender.evaluate):
                step = len(lane.result["train_loss"])
                lane.result["curve"].append({"step": step, "loss": scores.pop("loss"), "metrics": scores})

    def _reference_lives(self, lanes: list[Lane]) -> bool:
        reference = self.all[0]
        if reference.result.get("status", "ok") == "ok":
            return True
        for lane in lanes:
            if lane.running:
                lane.end(ContenderFailed("failed", f"stopped because the reference {reference.result['status']}"))
        return False


def _equal_time(
    comparison: Comparison,
    seed: int,
    lanes: list[Lane],
    worlds: list[int],
    progress: Progress,
    limit_s: float,
    hang_s: float,
) -> None:
    """Trains a contender a second time where its step costs more or less than the reference's, its learning-rate
    schedule ending when the reference's budget ends. Quality depends on the steps alone, so it needs no pair.
    """
    reference = lanes[0].result
    if not reference.get("block_s"):
        return
    for lane, world_size in zip(lanes[1:], worlds[1:], strict=True):
        result = lane.result
        if result.get("status", "ok") != "ok" or not result.get("block_s"):
            continue
        budget_s = reference["setup_s"] + _training_s(reference)
        share = (budget_s - result["setup_s"]) / _training_s(result)
        steps = round(share * comparison.base_steps())
        if abs(share - 1) <= SAME_COST or steps < 1:
            continue
        progress(1.0, f"{lane.stack} again, at equal time")
        again = Lane(lane.stack)
        spec = replace(comparison.spec(lane.stack, seed), steps=steps)
        try:
            again.process = Contender(spec, world_size=world_size, limit_s=limit_s, hang_s=hang_s)
            again.attempt(Contender.prepare)
            if ready := again.attempt(Contender.set_up):
                total, blocks = ready["steps"], 2 * comparison.rounds  # as long a silence as in the rounds, no hang
                for block in range(blocks):
                    count = (block + 1) * total // blocks - block * total // blocks
                    again.attempt(partial(Contender.block, steps=count))
                if scores := again.attempt(Contender.evaluate):
                    result["equal_time"] = EqualTime(steps=total, loss=scores.pop("loss"), metrics=scores)
        finally:
            again.close()


def _training_s(result: dict[str, Any]) -> float:
    """Training seconds with each round's pace replaced by the median of its neighbourhood: a hiccup is not a cost."""
    paces = [sum(seconds) / sum(steps) for seconds, steps in zip(result["block_s"], result["block_steps"], strict=True)]
    width = max(1, len(paces) // 5)
    chunks = [paces[start : start + width] for start in range(0, len(paces), width)]
    return result["steps"] * statistics.fmean(
        pace for chunk in chunks for pace in [statistics.median(chunk)] * len(chunk)
    )


def sources_of(stack: str) -> dict[str, str]:
    """Technique id -> hash of its code, for every technique of the stack."""
    if stack == "baseline":
        return {}
    entries = catalogue()
    return {name: lookup("technique", name, entries).source_sha256 for name, _ in split(stack)}


def canonical(stack: str) -> str:
    """One spelling for a stack, so that equal stacks have equal records."""
    return "baseline" if stack in ("", "baseline") else written(split(stack))


MEASURING = (
    "contract/baseline", "contract/data", "contract/pretrained", "contract/recipe", "contract/run", "contract/stack",
    "contract/technique", "measure/comparison", "measure/contender", "measure/worker", "model/*", "kernels/*",
    "meters/*",
)  # fmt: skip


def harness_sha256() -> str:
    """Hash of the harness code that a measurement depends on: records of another hash are stale."""
    folder = Path(suite.__file__).parent
    return hash_files(path for name in MEASURING for path in folder.glob(f"{name}.py"))


def baseline_sha256(baseline: Baseline) -> str:
    """Hash of the code of the baseline's package."""
    return hash_files(Path(inspect.getfile(type(baseline))).parent.glob("*.py"))
