"""Takes samples of operators, each of a signature: as the trace notes it that notes those of a step, and clocked.

On a CPU a call's time is its processor time, in which other processes have no part. On a GPU the queue is first filled
behind a kernel that spins, so that what is clocked between two events waits for no host; the host's own time is clocked
apart. The least of several batches of calls is kept: what else runs on a machine only adds.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import torch

from suite.measure.provenance import Progress, silent
from suite.meters.operators import OperatorTrace
from suite.record.operator_counts import HOST_ONLY, Operator, fields_of
from suite.topics.modelled_time.device_samples import OperatorSample
from suite.topics.modelled_time.own_device.operator_calls import DTYPES, Call, calls

BATCHES = {"cpu": 7, "cuda": 4}
BATCH_S = 2e-3
"""A batch has as many calls as take so long, one at least."""
LONGEST_CALL_S = 0.05
"""Of an operator that takes longer, larger sizes have no sample."""
MOST_CALLS = 400
SPIN_CYCLES, SPIN_CYCLES_A_CALL = 200_000, 40_000
"""Of a GPU's clock, some 2 GHz: longer than a host takes to ask for a batch."""
ABOUT = 900
"""Operators of a type, at all sizes: for a bar alone."""


def sampled(device: str, progress: Progress = silent) -> tuple[list[OperatorSample], dict[str, str]]:
    """Returns a sample of each operator at each size and type, and why others have none."""
    samples: list[OperatorSample] = []
    refused: dict[str, str] = {}
    slow: set[str] = set()
    for at, dtype in enumerate(DTYPES):
        for done, call in enumerate(calls(device, dtype)):
            progress((at + min(1.0, done / ABOUT)) / len(DTYPES), f"operators, {dtype}")
            try:
                call()
                operator = noted(call)
                name = f"{operator.name} {operator.dtype}"
                if name in slow:
                    continue
                seconds, host_s = clocked(call, device)
            except (
                RuntimeError,
                ValueError,
                TypeError,
            ) as error:  # named; no constant rests on it
                refused[f"operator {done} {dtype}"] = str(error).splitlines()[0][:160]
                continue
            if seconds > LONGEST_CALL_S:
                slow.add(name)
            samples.append(OperatorSample(said=_said(operator), seconds=seconds, host_s=host_s))
    return samples, refused


def _said(operator: Operator) -> str:
    """Returns the signature, without the shapes that no constant depends on."""
    signature = operator if operator.kind == "attention" else replace(operator, shapes=())
    return json.dumps(fields_of(signature), separators=(",", ":"))


def noted(call: Call) -> Operator:
    """Returns the signature of what a call runs. Raises ValueError where that is not one operator."""
    with OperatorTrace() as trace:
        call()
    ran = [operator for operator, count in trace.step() if operator.kind != HOST_ONLY for _ in range(count)]
    if len(ran) != 1:
        raise ValueError(f"{len(ran)} operators run: {', '.join(operator.name for operator in ran)}")
    return ran[0]


def clocked(call: Call, device: str) -> tuple[float, float]:
    """Returns the seconds that a call takes on the device, and on its host where that does not wait (0 on a CPU)."""
    one = _batch(call, 1, device)[0]
    calls = max(1, min(MOST_CALLS, int(BATCH_S / max(one, 1e-7))))
    took = [_batch(call, calls, device) for _ in range(BATCHES[device] if one < LONGEST_CALL_S else 1)]
    return min(device_s for device_s, _ in took), min(host for _, host in took)


def _batch(call: Call, calls: int, device: str) -> tuple[float, float]:
    if device == "cpu":
        began = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - began) / calls, 0.0
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN_CYCLES + SPIN_CYCLES_A_CALL * calls)  # what follows is in the queue before it runs
    first.record()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    host_s = (time.perf_counter() - began) / calls
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / calls, host_s
