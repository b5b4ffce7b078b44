"""Which mutants were tried, and what noticed each: ``tried_mutants.json``, by the code and the claims that they broke.

    python -m tests.techniques.tried_mutants         tries those of entries that changed, and keeps it
    python -m tests.techniques.tried_mutants --all    tries all (about an hour of two cores)

What a mutant breaks is the code of its technique, what judges it its exact claims, properties and probes. Where none
of these changed, nor a library, a try says what the last one said: meters, models and the training loop are in it. A
mutant is noticed on one baseline, and another that changed cannot make it survive. A run of the tests tries the others,
and in any case a few which together go every way that the rest of the harness has (``ways_of``), since what runs and
judges them changes, too. What is kept was tried whole, on all baselines of an entry: so its exact claims, its
conformance and its counts without values are left out as well, on each baseline where nothing changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TypedDict

from suite.entries.catalogue import Entry, catalogue
from suite.entries.installed import baselines
from suite.entries.sources import code_of
from suite.judge.claims import is_exact
from suite.measure.mutants import FILE, Notice, mutants_of, noticed, processes
from suite.record.files import replacing
from suite.record.job import BASELINE, Setting
from suite.record.machine import versions

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".json")
IN_EVERY_RUN = frozenset(
    {"albert_sharing", "bitfit", "ckpt_chen_sqrt", "esam", "lawa", "lion", "mass", "zero1", "zero2"}
)  # of those that go every way, some that take little time
WORDS = {"statement", "place", "read", "unread", "note", "setting"}
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


def sha256_on(entry: Entry, baseline: str) -> str:
    """Of all that a try of an entry on a baseline depends on, but for the harness."""
    code = code_of(Setting(baseline=baseline, task=entry.card.task), entry.id)
    parts = [json.dumps(versions()), code.counts]
    parts += [
        claim.model_dump_json(exclude_defaults=True, exclude=WORDS) for claim in entry.card.judged if is_exact(claim)
    ]
    parts.append((entry.folder / FILE).read_text("utf-8"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def sha256_of(entry: Entry) -> str:
    """Of all that a try of an entry depends on, on all its baselines."""
    parts = [sha256_on(entry, baseline) for baseline in sorted(entry.card.baselines)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class Tried(TypedDict):
    """The tries of an entry, by baseline: ``sha256``, and what ``noticed`` each mutant there."""

    sha256: dict[str, str]
    noticed: dict[str, dict[str, str]]


@cache
def kept() -> dict[str, Tried]:
    """By entry."""
    known: dict[str, Tried] = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    return known


def changed_on(entry: Entry) -> list[str]:
    """The entry's baselines on which code or claims are not as they were tried; all with LEANTRAIN_TESTS=all."""
    tried = kept().get(entry.id)
    if tried is None or os.environ.get("LEANTRAIN_TESTS") == "all":
        return list(entry.card.baselines)
    return [name for name in entry.card.baselines if tried["sha256"].get(name) != sha256_on(entry, name)]


def is_as_noticed(entry: Entry) -> bool:
    """Whether all mutants that the entry has now were noticed, each on a baseline where nothing changed."""
    tried, changed = kept().get(entry.id), changed_on(entry)
    if tried is None:
        return False
    as_tried = [tried["noticed"].get(name, {}) for name in entry.card.baselines if name not in changed]
    return sorted(name for each in as_tried for name in each) == sorted(each.name for each in mutants_of(entry))


def is_as_tried(entry: Entry) -> bool:
    """Whether the entry is as it was tried, on all its baselines."""
    return not changed_on(entry) and is_as_noticed(entry)


def keep(entry: Entry, notices: Sequence[Notice] = ()) -> None:
    """Keeps that an entry was tried as it is now, with what noticed its mutants, or without ``notices`` had noticed
    them before; forgets it if one survives."""
    known = {id: tried for id, tried in kept().items() if id in catalogue()}
    before = known.pop(entry.id, None)
    by_baseline: dict[str, dict[str, str]] = before["noticed"] if before and not notices else {}
    for each in notices:
        by_baseline.setdefault(each.baseline, {})[each.mutant.name] = each.sentence
    if not any(each.survives for each in notices):
        shas = {name: sha256_on(entry, name) for name in sorted(entry.card.baselines)}
        known[entry.id] = {"sha256": shas, "noticed": by_baseline}
    with replacing(KEPT) as file:
        file.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")
    kept.cache_clear()


def where_changed(changed: Mapping[str, Iterable[str]]) -> int:
    """The exit code of the tests of exact claims, conformance and counts without values: ``changed`` has the baselines
    of each entry."""
    tests = ("tests/measure/test_exact.py", "tests/measure/test_paper_scale.py", "tests/techniques/test_conformance.py")
    cases = [case for id, names in changed.items() for case in (f"[{id}]", *(f"[{id}-{name}]" for name in names))]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *tests, "-k", " or ".join(cases)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"LEANTRAIN_TESTS": "all"}).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.techniques.tried_mutants", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also those of entries that are as they were")
    everything = parser.parse_args().all
    entries = [each for each in catalogue().values() if everything or not is_as_tried(each)]
    to_try = [each for each in entries if everything or not is_as_noticed(each)]
    print(f"{len(entries)} of {len(catalogue())} entries changed, mutants of {len(to_try)} to try", flush=True)
    changed = {each.id: each.card.baselines if everything else changed_on(each) for each in entries}
    if entries and (code := where_changed(changed)):
        raise SystemExit(code)
    for entry in entries:
        if entry not in to_try:
            keep(entry)
    survivors = 0
    with processes(os.cpu_count() or 1) as pool:
        for id, notices in groupby(noticed(to_try, list(baselines()), pool), key=lambda each: each.mutant.technique):
            keep(catalogue()[id], of_one := list(notices))
            for notice in filter(lambda each: each.survives, of_one):
                survivors += 1
                print(f"{id}: {notice.mutant.name}: survives", flush=True)
    raise SystemExit(survivors > 0)


if __name__ == "__main__":
    main()
