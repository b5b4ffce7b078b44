"""A hundred thousand records: every command over a whole store takes at most a minute and 2 GiB.

The minute is one of a core, as the kernel counts it for all processes of a command: what an idle machine takes, since
these commands compute in one thread; the time on the clock stands beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from suite.record.machine import key_of
from suite.record.schema import parse
from suite.record.seal import LENGTH, sealed
from tests.torture import Row, Scale

ROOT = Path(__file__).parents[2]
RECORDS = 100_000
LONGEST_S, MOST_GIB = 60.0, 2.0
MACHINES, SEED_BLOCKS = 6, 4
COMMANDS = {
    "leaderboard": ["leaderboard", "--write", "board.md", "--write", "board.html"],
    "claims": ["claims"],
    "history": ["history"],
    "export": ["leaderboard", "--write", "rows.csv"],
    "a picture": ["leaderboard", "--write", "board.svg"],
    "run --dry-run": ["run", "--dry-run"],
    "doctor": ["doctor"],
    "list sam": ["list", "sam"],
    "publish": ["publish", "--to", "sent"],
    "merge": ["merge", "sent"],
}
ENDS = (0, 1, 3, 4)  # as they should be: fine, something found, undecided, a machine that is busy


def attack(scale: Scale) -> Iterator[Row]:
    number = scale.trials(RECORDS)
    with tempfile.TemporaryDirectory() as folder:
        generate(number, Path(folder) / "results")
        for name, arguments in COMMANDS.items():
            code, core_s, clock_s, gib = spent(arguments, Path(folder))
            told = f"{core_s:.0f} s ({clock_s:.0f} s on the clock), {gib:.2f} GiB"
            held = code in ENDS and core_s <= LONGEST_S and gib <= MOST_GIB
            told += "" if code in ENDS else f", exit code {code}"
            yield Row(f"{name} of {number:,} records (at most {LONGEST_S:.0f} s, {MOST_GIB:g} GiB)", 1, told, held)


def spent(arguments: list[str], folder: Path) -> tuple[int, float, float, float]:
    """The exit code of one command over ``folder``/results, seconds of a core and on the clock, GiB."""
    start_s = time.monotonic()
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "suite.cli", *arguments, "--results", "results"],
            cwd=folder,
            stdout=printed,
            stderr=printed,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    core_s = usage.ru_utime + usage.ru_stime
    return process.returncode, core_s, time.monotonic() - start_s, usage.ru_maxrss / 2**20


def generate(number: int, folder: Path) -> None:
    """Synthetic evidence from the committed: on other machines, with other seeds, then of other techniques."""
    lines = [
        json.loads(line[:-LENGTH] + b"}")
        for path in sorted((ROOT / "results").glob("*/*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    left = number
    for copy in count():
        machine, seeds = copy % MACHINES, copy // MACHINES % SEED_BLOCKS
        of_copy = [varied(line, machine, seeds, copy // MACHINES // SEED_BLOCKS) for line in lines[:left]]
        path = folder / f"machine-{machine}" / "all.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for each in of_copy:
                file.write(sealed(parse(json.dumps(each)).model_dump_json().encode()) + b"\n")
        left -= len(of_copy)
        if not left:
            return


def varied(line: dict[str, object], machine: int, seeds: int, stacks: int) -> dict[str, object]:
    """The line as another one."""
    other = json.loads(json.dumps(line)) | {"id": uuid.uuid4().hex}
    if isinstance(other.get("machine"), dict):  # of a renewal it is a name
        facts = other["machine"]["facts"] | {"synthetic": machine}
        other["machine"] |= {"name": f"machine-{machine}", "facts": facts, "key": key_of(facts)}
    for name in ("seed", "replicate"):
        if name in other:
            other[name] += 10 * seeds
    for each in (other, *other.get("contenders", ())):
        if stacks and each.get("stack", "baseline") != "baseline":
            each["stack"] = "+".join(f"{name.split(':')[0]}_{stacks}" for name in each["stack"].split("+"))
    return other


if __name__ == "__main__":
    generate(int(sys.argv[1]), Path(sys.argv[2]))
