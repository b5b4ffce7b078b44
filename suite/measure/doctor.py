"""Says what this machine can measure, what is missing and why, and what would disturb a measurement now."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from suite.meters.energy import EnergyMeter
from suite.record.machine import fingerprint, fitness

OPTIONAL = {
    "datasets": "--data needs it: pip install 'leantrain[data]'",
    "pyarrow": "leaderboard --write board.parquet needs it: pip install 'leantrain[parquet]'",
    "wandb": "--wandb needs it: pip install 'leantrain[wandb]'",
    "pytest_benchmark": "benchmarks/ needs it: pip install 'leantrain[bench]'",
    "zeus": "energy needs it: pip install 'leantrain[energy]'",
    "flash_attn": "the flash-attn peer needs it; it builds only from source with a CUDA compiler: "
    "pip install 'leantrain[flash-attn]'",
}


def examine(device: str, threads: int) -> dict[str, list[str]]:
    """Facts by heading, one line each."""
    machine = fingerprint(device, threads)
    libraries = []
    for name in ("torch", "triton", "transformers", "timm", *OPTIONAL):
        if importlib.util.find_spec(name) is None:
            libraries.append(f"{name}: unavailable ({OPTIONAL.get(name, 'not installed')})")
            continue
        try:
            libraries.append(f"{name} {version(name.replace('_', '-'))}")
        except PackageNotFoundError:
            libraries.append(f"{name}: present")
    with EnergyMeter(device) as meter:
        pass
    energy = meter.reading.method if meter.available else f"unavailable ({meter.reading.reason})"
    return {
        f"machine {machine.name}": [f"{key}: {value}" for key, value in machine.facts.items()],
        "libraries": libraries,
        "energy": [energy],
        "disturbs a measurement now": fitness(device),
    }
