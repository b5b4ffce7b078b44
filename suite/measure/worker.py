"""What runs inside a contender's process. Imported once by the fork server, so that each contender starts loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from suite.contract.adapting import baseline_for
from suite.contract.baseline import baseline_of, baselines
from suite.contract.catalogue import catalogue
from suite.contract.data import HeldOut
from suite.contract.pretrained import checkpoint
from suite.contract.recording import BATCHES, Recording, with_few_examples
from suite.contract.run import Run
from suite.contract.technique import Unavailable
from suite.measure.archives import intact
from suite.measure.replies import scalar
from suite.meters.clock import Clock
from suite.meters.energy import EnergyMeter
from suite.meters.process import ProcessMemory, cuda_memory, settle_memory
from suite.record.job import Job
from suite.record.schema import Counters, Energy, Memory

LOOPBACK = Path("/sys/class/net/lo")
MOST_PROBES = 1000

baselines()  # their libraries are what takes seconds to import
catalogue()


def joined(device: str, rank: int, world_size: int, rendezvous: str) -> DeviceMesh:
    """The mesh of this machine's ranks that meet in the folder ``rendezvous``; this process is one of them."""
    if LOOPBACK.exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    backend = "nccl" if device == "cuda" else "gloo"
    store = f"file://{rendezvous}/store"
    torch.distributed.init_process_group(backend, init_method=store, rank=rank, world_size=world_size)
    return torch.distributed.init_device_mesh(device, (world_size,))


class Session:
    """One rank's side of a contender; each method answers one command of the parent."""

    def __init__(self, job: Job, rank: int, world_size: int, rendezvous: str) -> None:
        setting = job.setting
        torch.set_num_threads(setting.threads)
        baseline_of(setting)
        self.mesh: DeviceMesh | None = None
        self.weights: Path | None = None
        if world_size > 1:
            if setting.device == "cuda":
                if torch.cuda.device_count() < world_size:
                    raise Unavailable(f"needs {world_size} GPUs, this machine has {torch.cuda.device_count()}")
                torch.cuda.set_device(rank)
            self.mesh = joined(setting.device, rank, world_size, rendezvous)
        on_rank = f"cuda:{rank}" if world_size > 1 and setting.device == "cuda" else setting.device
        self.job = job.model_copy(update={"setting": setting.but(device=on_rank)})

    def prepare(self) -> None:
        setting = self.job.setting
        baseline_for(setting).data(setting.size, setting.task, setting.data)
        if setting.task == "adapt":
            self.weights = intact(lambda: checkpoint(setting.but(device=setting.device.partition(":")[0])))

    def set_up(self, recorded: bool = False) -> dict[str, Any]:
        baseline = baseline_for(self.job.setting)
        # What was prepared may have been cached, or have trained a checkpoint: no part of this run's memory.
        settle_memory(self.job.setting.device)
        self.memory = ProcessMemory()
        self.memory.__enter__()  # closed in usage, which reads the peak
        self.clock = Clock(self.job.setting.device)
        start_s = self.clock.now_s()
        if recorded:
            baseline = with_few_examples(baseline, BATCHES * baseline.recipe_of(self.job.setting).batch_size)
        self.run = Run(self.job, baseline=baseline, weights=self.weights, mesh=self.mesh)
        self.recording = Recording(self.run) if recorded else None
        return {
            "setup_s": self.clock.now_s() - start_s,
            "steps": self.run.recipe.steps,
            "recipe": {name: scalar(value) for name, value in self.run.recipe.as_dict().items()},
        }

    def block(self, steps: int) -> dict[str, Any]:
        cpu_s = time.process_time()
        start_s = self.clock.now_s()
        losses = (self.recording or self.run).train(steps)
        seconds = self.clock.now_s() - start_s
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "losses": losses}

    def evaluate(self, part: HeldOut) -> dict[str, float]:
        return self.run.evaluate(part)

    def count(self) -> Counters:
        return self.run.count_step()

    def probes(self) -> dict[str, float]:
        return _kept(self.recording.probes() if self.recording else self.run.probes())

    def all_probes(self) -> dict[str, float]:
        return _kept(self.run.probes() | (self.recording.probes() if self.recording else {}))

    def save(self, path: Path) -> None:
        self.run.save(self._own(path))

    def load(self, path: Path) -> None:
        """Into a fresh run: one that has grown cannot shrink."""
        state = self._own(path)
        baseline = self.run.baseline
        del self.run
        self.run = Run(self.job, baseline=baseline, weights=self.weights, mesh=self.mesh)
        self.run.load(state)

    def _own(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.{self.run.rank}")

    def usage(self, energy_window_s: float) -> tuple[Memory, Energy]:
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
            while self.clock.now_s() < end_s:
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
            reason=reading.reason or ("" if steps else "no window was asked for"),
        )


def _kept(probes: Mapping[str, float]) -> dict[str, float]:
    """As plain values. Raises ValueError where they are more than a record takes."""
    if len(probes) > MOST_PROBES:
        raise ValueError(f"{len(probes)} probes are more than a record takes ({MOST_PROBES})")
    return {str(name): float(value) for name, value in probes.items()}
