"""Says what this machine can measure, what is missing and why, what would disturb a measurement now, and which machine
of a results folder it is."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from suite.meters.energy import EnergyMeter
from suite.record.machine import differing, fingerprint, fitness, unrecorded
from suite.record.schema import Machine, Renewal
from suite.record.store import Records, Store
from suite.record.text import printable

OPTIONAL = {
    "datasets": "--data needs it: pip install 'leantrain[data]'",
    "pyarrow": "leaderboard --write board.parquet needs it: pip install 'leantrain[parquet]'",
    "wandb": "--wandb needs it: pip install 'leantrain[wandb]'",
    "mlflow": "--mlflow needs it: pip install 'leantrain[mlflow]'",
    "trackio": "--trackio needs it: pip install 'leantrain[trackio]'",
    "mcp": "leantrain mcp needs it: pip install 'leantrain[mcp]'",
    "pytest_benchmark": "benchmarks/ needs it: pip install 'leantrain[bench]'",
    "zeus": "energy needs it: pip install 'leantrain[energy]'",
    "flash_attn": "the flash-attn peer needs it; it builds only from source with a CUDA compiler: "
    "pip install 'leantrain[flash-attn]'",
}


def examine(device: str, threads: int, results: Path) -> dict[str, list[str]]:
    """Returns facts by heading, one line each. ``results``: the folder whose machines this one is compared with."""
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
    why = machine.context["unread"]
    records, problems = Store(results).read()
    return {
        f"machine {machine.name}": [
            f"{name}: {value}{f' ({why[name]})' if name in why else ''}" for name, value in machine.facts.items()
        ],
        f"machines of {results}": [*among(machine, records), *problems],
        "libraries": libraries,
        "energy": [energy],
        "disturbs a measurement now": fitness(device),
    }


def among(machine: Machine, records: Records) -> list[str]:
    """Tells which machine of the records this one is, and what follows; a sentence each."""
    lines = [line for line in records.lines if not isinstance(line, Renewal)]
    known = {line.home.key: line.home for line in lines}
    if not known:
        return ["there are no records yet, so none that this machine could share; measure some with: leantrain run"]
    timings = Counter(timing.home.key for timing in records.timed)
    others = [other for key, other in sorted(known.items()) if key != machine.key]
    said = []
    if equal := known.get(machine.key):
        said.append(
            f"this machine is {printable(equal.name)}, all facts are equal: its timings ({timings[equal.key]}) count "
            "here, and what is timed here is pooled with them"
        )
    else:
        said.append(
            f"this machine is none of these: {', '.join(printable(other.name) for other in others)}; so none of their "
            f"timings ({timings.total()}) counts here: leantrain run makes its own"
        )
    said.append("counts and curves travel: those of every machine are used here, and each row says whose they are")
    return said + ([] if equal or not others else [_nearest(machine, others)])


def _nearest(machine: Machine, others: Sequence[Machine]) -> str:
    """Names the machine with the fewest facts that differ, or were not recorded, and which these are."""
    facts = machine.facts
    near = min(others, key=lambda other: len(differing(other.facts, facts)) + len(unrecorded(other.facts, facts)))
    unlike, untold = differing(near.facts, facts), unrecorded(near.facts, facts)
    changes = [f"{name} is {printable(str(there))} there, {here} here" for name, (there, here) in unlike.items()]
    untold_there = [f"not recorded there: {', '.join(untold)}"] if untold else []
    end = "; it may be the same, but nothing shows that" if untold and not unlike else ""
    return f"the nearest is {printable(near.name)}: {'; '.join([*changes, *untold_there])}{end}"
