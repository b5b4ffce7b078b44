"""Runs inside a contender's process. Imported once by the fork server, so that each contender starts loaded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from suite.device.ranks import device_of, joined, wait_a_few_times
from suite.entries.adapting import baseline_for
from suite.entries.catalogue import catalogue
from suite.entries.installed import baseline_of, baselines
from suite.entries.pretrained import checkpoint
from suite.entries.together import run_of
from suite.loop.data import HeldOut
from suite.loop.technique import Unavailable
from suite.measure.archives import intact
from suite.measure.contenders.stock import data_of
from suite.measure.rounding import nudge_weights
from suite.measure.rules.conduct import Conduct
from suite.measure.rules.held_out import HandOver
from suite.measure.rules.referee import Referee  # noqa: F401  loaded by the server, for referees to start loaded
from suite.measure.rules.surroundings import process_time
from suite.measure.traffic import Traffic
from suite.meters.clock import Clock
from suite.meters.energy import EnergyMeter
from suite.meters.holders import Living
from suite.meters.process import ProcessMemory, cuda_memory, settle_memory
from suite.meters.whole_run import FlopTally
from suite.process.replies import scalar
from suite.reading.recording import BATCHES, Recording, with_few_examples
from suite.record.job import Job
from suite.record.schema import Counters, Energy, Memory

MOST_PROBES = 1000
LARGE_BYTES = 1 << 20  # of which a link's latency is a small part

baselines()  # their libraries are what takes seconds to import
catalogue()


class Session:
    """Holds one rank's side of a contender; each method answers one command of the parent."""

    def __init__(self, job: Job, rank: int, world_size: int, rendezvous: str) -> None:
        setting = job.setting
        torch.set_num_threads(setting.threads)
        baseline_of(setting)
        self.mesh: DeviceMesh | None = None
        self.weights: Path | None = None
        if world_size > 1:
            if setting.device == "cuda" and torch.cuda.device_count() < world_size:
                raise Unavailable(f"needs {world_size} GPUs, this machine has {torch.cuda.device_count()}")
            self.mesh = joined(setting.device, rank, world_size, rendezvous)
            setting = setting.but(device=device_of(rank, setting.device))
        self.job = job.model_copy(update={"setting": setting})
        self.conduct = Conduct(self.job)  # before a technique's code is loaded

    def prepare(self, weights: bool) -> None:
        setting = self.job.setting
        baseline_for(setting).data(setting.size, setting.task, setting.data)
        if weights and setting.task == "adapt":
            self.weights = intact(lambda: checkpoint(setting.but(device=setting.device.partition(":")[0])))

    def set_up(self, recorded: bool, nudge: int, tallied: bool, counted: bool) -> dict[str, Any]:
        baseline = self.conduct.baseline(baseline_for(self.job.setting))
        # What was prepared may have been cached, or have trained a checkpoint: no part of this run's memory.
        settle_memory(self.job.setting.device)
        self.memory = ProcessMemory()
        self.memory.__enter__()  # closed in usage, which reads the peak
        self.clock = Clock(self.job.setting.device)
        start_s = self.clock.now_s()
        if recorded:
            baseline = with_few_examples(baseline, BATCHES * baseline.recipe_of(self.job.setting).batch_size)
        # Compiled code is no operator to the dispatcher, and under its modes nothing is compiled.
        self.tally = FlopTally(self.job.seed) if tallied and self.job.setting.recipe != "compiled" else None
        self.before = Living() if counted else None
        with self.tally.counting() if self.tally else nullcontext():
            self.run = run_of(self.job, baseline=baseline, weights=self.weights, mesh=self.mesh)
        self.recording = Recording(self.run) if recorded else None
        if nudge:
            nudge_weights(self.run.model, nudge)
        ready = self._ready(start_s)
        self.conduct.begin(self.run, few=recorded)
        return ready

    def compress(self, steps: int) -> dict[str, Any]:
        start_s = self.clock.now_s()
        baseline, setting = self.run.baseline, self.job.setting
        del self.run  # before there is another: peaks of memory are of one
        job = self.job.model_copy(update={"setting": setting.but(steps=steps)})
        self.run = run_of(job, baseline=baseline, weights=self.weights, mesh=self.mesh)
        ready = self._ready(start_s)
        self.conduct.begin(self.run, few=False)
        return ready

    def _ready(self, start_s: float) -> dict[str, Any]:
        setup_s = self.clock.now_s() - start_s
        self._expect(setup_s)
        return {
            "setup_s": setup_s,
            "steps": self.run.recipe.steps,
            "set_up_flops": self.tally.total if self.tally else None,
            "recipe": {name: scalar(value) for name, value in self.run.recipe.as_dict().items()},
        }

    def _expect(self, longest_s: float) -> None:
        if self.mesh is not None:
            wait_a_few_times(self.mesh, longest_s)

    def training_data(self, path: str) -> dict[str, Any]:
        return self.conduct.training_data(self.run, path)

    def block(self, steps: int) -> dict[str, Any]:
        cpu_s = process_time()
        start_s, position = self.clock.now_s(), self.run.position
        train = (self.recording or self.run).train
        if self.tally:
            losses = self.tally.train(self._noted, steps, self._counting(self.tally))
        else:
            losses = train(steps)
        seconds = self.clock.now_s() - start_s
        cpu_s = process_time() - cpu_s
        self._expect(seconds / max(1, steps))
        self.conduct.check_steps(self.run, steps)
        order = [self.conduct.order(), position, self.run.recipe.batch_size] if self.tally else None
        return {"seconds": seconds, "cpu_s": cpu_s, "losses": losses, "order": order}

    def _noted(self, steps: int) -> list[float]:
        """Makes the steps one by one, and notes their examples."""
        losses = []
        for _ in range(steps):
            losses += (self.recording or self.run).train(1)
            self.conduct.took(self.run)
        return losses

    def _counting(self, tally: FlopTally) -> Callable[[], AbstractContextManager[None]]:
        return lambda: self.conduct.counting(self.run, lambda: tally.total + tally.uncounted.total())

    def evaluate(self, part: HeldOut, inputs: str, outputs: str, names: list[str], first: int) -> dict[str, Any]:
        return self.conduct.evaluate(self.run, part, HandOver(inputs, outputs, names), first)

    def flops(self) -> dict[str, Any] | None:
        return {"total": self.tally.total, "uncounted": self.tally.uncounted} if self.tally else None

    def count(self) -> Counters:
        known: list[Counters] = []

        def seen() -> int:
            return sum(each.flops + sum(each.uncounted_operators.values()) for each in known)

        left_out = self.before.left_out(*data_of(self.run)) if self.before else nullcontext()
        with left_out, self.conduct.counting(self.run, seen):
            known.append(self._counted())
        self.conduct.check_steps(self.run, 1)
        self.conduct.check_surroundings(self.run)
        return known[0]

    def _counted(self) -> Counters:
        if self.mesh is None:
            return self.run.count_step()
        with Traffic() as traffic:
            counters = self.run.count_step()
        return counters.model_copy(update={"communication_bytes": traffic.wire_bytes(self.run.world_size)})

    def traffic(self) -> dict[str, int]:
        with Traffic() as traffic:
            self.run.train(1)
        self.conduct.check_steps(self.run, 1)
        return {"sent_bytes": traffic.wire_bytes(self.run.world_size), "messages": traffic.messages}

    def link(self) -> dict[str, float]:
        if self.mesh is None:
            raise ValueError("one process has no link: name a stack that trains on several ranks")
        group = self.mesh.get_group()
        one, many = (torch.zeros(size // 4, device=self.run.device) for size in (4, LARGE_BYTES))

        def reduced_s(values: torch.Tensor, times: int) -> float:
            taken = []
            for _ in range(times):
                torch.distributed.barrier(group)
                start_s = self.clock.now_s()
                torch.distributed.all_reduce(values, group=group)
                taken.append(self.clock.now_s() - start_s)
            return statistics.median(taken)

        reduced_s(many, 1)  # what a limiter has saved up is spent
        latency_s = reduced_s(one, 9)
        sent = 2 * (group.size() - 1) / group.size() * many.nbytes
        return {"latency_s": latency_s, "bytes_per_s": sent / reduced_s(many, 3)}

    def probes(self) -> dict[str, float]:
        if self.recording:
            return _kept(self._recorded())
        with self._at_the_end():
            return _kept(self.run.probes())

    def all_probes(self) -> dict[str, float]:
        with self._at_the_end():
            return _kept(self.run.probes() | (self._recorded() if self.recording else {}))

    def _recorded(self) -> dict[str, float]:
        assert self.recording is not None
        with self.conduct.seal.opened():  # what reads recorded steps is no part of the run
            shown = self.recording.probes()
        self.conduct.count_from(self.run)
        return shown

    @contextmanager
    def _at_the_end(self) -> Iterator[None]:
        """Opens the test examples to what a technique measures of a run that has ended."""
        self.conduct.end(self.run)
        with self.conduct.seal.opened():
            yield

    def usage(self, energy_window_s: float) -> tuple[Memory, Energy]:
        self.conduct.end(self.run)
        self.memory.__exit__()
        cuda = cuda_memory(self.job.setting.device) if self.run.device.type == "cuda" else None
        memory = Memory(
            process_start_bytes=self.memory.start_bytes,
            process_peak_bytes=self.memory.peak_bytes,
            cuda_allocated_peak_bytes=cuda.allocated_bytes if cuda else None,
            cuda_reserved_peak_bytes=cuda.reserved_bytes if cuda else None,
        )
        return memory, self._energy(energy_window_s)

    def _energy(self, window_s: float) -> Energy:
        steps = 0
        with EnergyMeter(self.job.setting.device) as meter:
            end_s = self.clock.now_s() + (window_s if meter.available else 0.0)
            left = self.run.recipe.steps - self.run.step  # beyond its schedule a run is another one
            while steps < left and self.clock.now_s() < end_s:
                self.run.train(1)
                steps += 1
        reading = meter.reading
        return Energy(
            joules_per_step=reading.joules / steps if reading.joules is not None and steps else None,
            kind=reading.kind if steps else "unavailable",
            method=reading.method,
            scope=reading.scope,
            window_s=reading.window_s,
            relative_error_bound=reading.relative_error_bound,
            reason=reading.reason or ("" if steps else "no window was asked for, or no step was left for it"),
        )


def _kept(probes: Mapping[str, float]) -> dict[str, float]:
    """Returns the probes as plain values. Raises ValueError where they are more than a record takes."""
    if len(probes) > MOST_PROBES:
        raise ValueError(f"{len(probes)} probes are more than a record takes ({MOST_PROBES})")
    return {str(name): float(value) for name, value in probes.items()}
