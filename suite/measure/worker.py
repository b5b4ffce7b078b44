"""What runs inside a contender's process. Imported once by the fork server, so that each contender starts loaded."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from suite.contract.baseline import baselines
from suite.contract.catalogue import build, catalogue, lookup
from suite.contract.pretrained import checkpoint
from suite.contract.run import Run
from suite.contract.technique import Unavailable
from suite.measure.contender import RunSpec
from suite.meters.clock import Clock
from suite.meters.communication import Communication
from suite.meters.counters import count_step
from suite.meters.energy import Energy
from suite.meters.process import ProcessMemory, cuda_memory
from suite.record.schema import Counters

LOOPBACK = Path("/sys/class/net/lo")
COUNTED = tuple(name for name in Counters.model_fields if name != "communication_bytes")

baselines()  # their libraries are what takes seconds to import
catalogue()


class Session:
    """One rank's side of a contender; each method answers one command of the parent."""

    def __init__(self, spec: RunSpec, rank: int, world_size: int, rendezvous: str) -> None:
        torch.set_num_threads(spec.threads)
        self.spec = spec
        self.baseline = lookup("baseline", spec.baseline, baselines())
        self.mesh = None
        self.device = spec.device
        self.weights: Path | None = None
        if world_size > 1:
            if spec.device == "cuda":
                if torch.cuda.device_count() < world_size:
                    raise Unavailable(f"needs {world_size} GPUs, this machine has {torch.cuda.device_count()}")
                self.device = f"cuda:{rank}"
                torch.cuda.set_device(rank)
            if LOOPBACK.exists():
                os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)  # ranks of a contender share a machine
            torch.distributed.init_process_group(
                "nccl" if spec.device == "cuda" else "gloo",
                init_method=f"file://{rendezvous}/store",
                rank=rank,
                world_size=world_size,
            )
            self.mesh = torch.distributed.init_device_mesh(spec.device, (world_size,))
        self.memory = ProcessMemory()
        self.memory.__enter__()  # closed in finish, which reads the peak

    def prepare(self) -> None:
        self.baseline.data(self.spec.size, self.spec.task, self.spec.data)
        if self.spec.task == "adapt":
            spec = self.spec
            self.weights = checkpoint(
                self.baseline, spec.size, spec.recipe, data=spec.data, model=spec.model, device=spec.device
            )

    def set_up(self) -> dict[str, Any]:
        spec = self.spec
        self.clock = Clock(self.device)
        start_s = self.clock.now_s()
        self.run = Run(
            self.baseline, build(spec.stack), size=spec.size, recipe=spec.recipe, task=spec.task, seed=spec.seed,
            steps=spec.steps, data=spec.data, model=spec.model, device=self.device, weights=self.weights,
            mesh=self.mesh,
        )  # fmt: skip
        return {
            "setup_s": self.clock.now_s() - start_s,
            "steps": self.run.recipe.steps,
            "recipe": self.run.recipe.as_dict(),
            "data": self.run.data.name,
            "data_sha256": self.run.data.sha256,
        }

    def block(self, steps: int) -> dict[str, Any]:
        cpu_s = time.process_time()
        start_s = self.clock.now_s()
        losses = self.run.train(steps)
        seconds = self.clock.now_s() - start_s
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "losses": losses}

    def evaluate(self) -> dict[str, float]:
        return self.run.evaluate()

    def finish(self, energy_window_s: float) -> dict[str, Any]:
        self.memory.__exit__()
        cuda = cuda_memory(self.device) if self.run.device.type == "cuda" else None
        probes = dict(self.run.technique.probes(self.run))
        energy = self._energy(energy_window_s)
        run, (batch, indices) = self.run, self.run.next_batch()
        with ExitStack() as stack:
            traffic = stack.enter_context(Communication()) if self.mesh is not None else None
            counters = count_step(
                lambda: run.train_step(batch, indices), run.model, run.optimizer, batch, compiled=run.recipe.compile
            )
        return {
            "counters": {name: getattr(counters, name) for name in COUNTED}
            | {"communication_bytes": traffic.ring_bytes(run.world_size) if traffic else None},
            "memory": {
                "process_peak_bytes": self.memory.peak_bytes,
                "cuda_allocated_peak_bytes": cuda.allocated_bytes if cuda else None,
                "cuda_reserved_peak_bytes": cuda.reserved_bytes if cuda else None,
            },
            "probes": probes,
            "energy": energy,
        }

    def _energy(self, window_s: float) -> dict[str, Any]:
        steps = 0
        with Energy(self.device) as meter:
            end_s = self.clock.now_s() + (window_s if meter.available else 0.0)
            while self.clock.now_s() < end_s:
                self.run.train(1)
                steps += 1
        reading = meter.reading
        return {
            "joules_per_step": reading.joules / steps if reading.joules is not None and steps else None,
            "kind": reading.kind if steps else "unavailable",
            "method": reading.method,
            "scope": reading.scope,
            "window_s": reading.window_s,
            "relative_error_bound": reading.relative_error_bound,
            "reason": reading.reason or ("" if steps else "no window was asked for"),
        }
