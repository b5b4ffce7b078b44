"""Which mutants were tried, and what noticed each: ``tried_mutants.json``, by the code and the claims that they broke.

    python -m tests.techniques.tried_mutants         tries those of entries that changed, and keeps it
    python -m tests.techniques.tried_mutants --all    tries all (an hour of one core)

What a mutant breaks is the code of its technique, what judges it its exact claims, properties and probes. Where none
of these changed, nor a library, a try says what the last one said: meters, models and the training loop are in it. A
run of the tests tries the others, and in any case a few which together go every way that the rest of the harness has
(``ways_of``), since what runs and judges them changes, too. What is kept was tried whole, on all baselines of an entry:
so its exact claims, its conformance and its counts without values are left to these as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from suite.entries.catalogue import Entry, catalogue
from suite.entries.installed import baselines
from suite.entries.sources import code_of
from suite.judge.claims import is_exact
from suite.measure.mutants import FILE, Notice, mutants_of, noticed, processes
from suite.record.files import replacing
from suite.record.job import BASELINE, Setting
from suite.record.libraries import versions

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".json")
IN_EVERY_RUN = frozenset(
    {"albert_sharing", "bitfit", "ckpt_chen_sqrt", "esam", "lawa", "lion", "mass", "zero1"}
)  # of those that go every way, some that take little time
WORDS = {"statement", "place", "note", "setting"}
"""What a claim says for its reader, and no try depends on."""
WHERE = ("settings", "against", "within", "baselines", "recipes", "sizes", "devices")
"""What a claim says of where it can be judged."""


def ways_of(entry: Entry) -> set[str]:
    """What the harness may do otherwise for one entry than for another, as it tries and judges its mutants: the task,
    several ranks, a reference of its own, the methods that it takes away, edits elsewhere or with settings, and what
    an exact claim reads, and says of where it holds."""
    claims = [claim for claim in entry.card.judged if is_exact(claim)]
    mutants = mutants_of(entry)
    ways = {f"task {entry.card.task}", *(each.name for each in mutants if each.lacks)}
    ways |= {"another reference"} if entry.card.reference != BASELINE else set()
    ways |= {"an edit elsewhere" for each in mutants if each.module not in ("", entry.module)}
    ways |= {"an edit with settings" for each in mutants if each.old and each.settings}
    ways |= {f"metric {claim.metric.partition('.')[0]}" for claim in claims}
    return ways | {f"claim with {name}" for claim in claims for name in WHERE if getattr(claim, name)}


def sha256_of(entry: Entry) -> str:
    """Of all that a try of an entry depends on, but for the harness."""
    settings = [Setting(baseline=name, task=entry.card.task) for name in sorted(entry.card.baselines)]
    parts = [json.dumps(versions()), *(code_of(setting, entry.id).counts for setting in settings)]
    parts += [
        claim.model_dump_json(exclude_defaults=True, exclude=WORDS) for claim in entry.card.judged if is_exact(claim)
    ]
    parts.append((entry.folder / FILE).read_text("utf-8"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def kept() -> dict[str, dict[str, object]]:
    """By entry: ``sha256``, and ``noticed_by`` of each mutant."""
    known: dict[str, dict[str, object]] = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    return known


def is_as_tried(entry: Entry) -> bool:
    """Whether all mutants that the entry has now were noticed, in code and by claims that are as they were; never with
    LEANTRAIN_TESTS=all."""
    known = kept().get(entry.id, {})
    noticed_by = known.get("noticed_by")
    names = sorted(each.name for each in mutants_of(entry))
    if os.environ.get("LEANTRAIN_TESTS") == "all" or not isinstance(noticed_by, dict) or sorted(noticed_by) != names:
        return False
    return known.get("sha256") == sha256_of(entry)


def keep(notices: Iterable[Notice]) -> None:
    """Adds entries whose mutants were all noticed; forgets those of which one survives."""
    by_entry: dict[str, dict[str, Notice]] = defaultdict(dict)
    for notice in notices:
        by_entry[notice.mutant.technique][notice.mutant.name] = notice
    known = {id: tried for id, tried in kept().items() if id in catalogue()}
    for id, tried in by_entry.items():
        known.pop(id, None)
        if not any(each.survives for each in tried.values()):
            sentences = {name: each.sentence for name, each in tried.items()}
            known[id] = {"sha256": sha256_of(catalogue()[id]), "noticed_by": sentences}
    with replacing(KEPT) as file:
        file.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")


def on_all_baselines(entries: Iterable[Entry]) -> int:
    """The exit code of the tests of exact claims, conformance and counts without values, on all baselines."""
    tests = ("tests/measure/test_exact.py", "tests/measure/test_paper_scale.py", "tests/techniques/test_conformance.py")
    chosen = " or ".join(f"[{entry.id}{end}" for entry in entries for end in "-]")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *tests, "-k", chosen]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"LEANTRAIN_TESTS": "all"}).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.techniques.tried_mutants", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also those of entries that are as they were")
    everything = parser.parse_args().all
    entries = [each for each in catalogue().values() if everything or not is_as_tried(each)]
    print(f"{len(entries)} of {len(catalogue())} entries to try", flush=True)
    if entries and (code := on_all_baselines(entries)):
        raise SystemExit(code)
    notices: list[Notice] = []
    with processes(os.cpu_count() or 1) as pool:
        for notice in noticed(entries, list(baselines()), pool):
            notices.append(notice)
            if notice.survives:
                print(f"{notice.mutant.technique}: {notice.mutant.name}: survives", flush=True)
            keep(notices)
    raise SystemExit(any(each.survives for each in notices))


if __name__ == "__main__":
    main()
