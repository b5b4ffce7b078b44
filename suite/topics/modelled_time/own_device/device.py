"""Measures all that is kept of this device."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import torch

from suite.measure.provenance import Progress, silent
from suite.record.machine import busy_cores, fingerprint, versions
from suite.topics.modelled_time.device_samples import OwnDevice
from suite.topics.modelled_time.own_device.samples import sampled
from suite.topics.modelled_time.own_device.steps import reference_step, settings_of


def measured(device: str, progress: Progress = silent) -> OwnDevice:
    """Measures operators and whole steps of this device, with one thread on a CPU, as jobs are timed."""
    began, load = time.perf_counter(), busy_cores()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples, refused = sampled(device, lambda share, what: progress(0.7 * share, what))
        wanted, references = list(settings_of(device)), []
        for done, setting in enumerate(wanted):
            progress(0.7 + 0.3 * done / len(wanted), f"{setting.baseline} {setting.size} {setting.recipe}")
            references.append(reference_step(setting))
    finally:
        torch.set_num_threads(threads)
    machine = fingerprint(device, 1)
    facts = machine.facts
    title = " and ".join(facts["gpu"]["names"]) if facts.get("gpu") else f"{facts['cpu']}, one thread"
    return OwnDevice(
        machine=machine.name,
        title=title,
        device=device,
        made=datetime.now(UTC).date().isoformat(),
        versions=versions(),
        load=round(load, 2),
        took_s=round(time.perf_counter() - began, 1),
        samples=samples,
        references=references,
        refused=refused,
    )
