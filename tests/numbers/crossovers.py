"""Below which bandwidth each method of ranks pays: ``python -m tests.numbers.crossovers [--results results]``.

Runs the link sweep (``leantrain study ID -b gpt``, a minute or so on two idle cores) of every entry that has one and no
tables of the installed code from this machine, those that compress first, and keeps each as it ends: interrupted, the
same command goes on with the next. Then it prints where each method and its reference take equally long, measured on
rate-limited links beside the alpha-beta model's, marked as modelled. ``--dry-run`` prints what is kept and what is
missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suite.entries.card import LinkSweep
from suite.entries.catalogue import catalogue
from suite.judge.study_tables import Study
from suite.record.machine import busy_cores, fingerprint
from suite.topics.studies.link_sweep import CROSSOVERS, MEASURED, MODELLED, PAPER, CrossoverRow
from suite.topics.studies.study import read_studies

BASELINE = "gpt"
MOST_BUSY = 0.2  # cores that others may keep busy: two ranks need both


def swept() -> list[str]:
    """The entries whose card asks for a link sweep, those that compress first: they have most to win."""
    entries = [entry for entry in catalogue().values() if isinstance(entry.card.study, LinkSweep)]
    return [each.id for each in sorted(entries, key=lambda each: each.card.category)]


def kept_here(folder: Path) -> dict[str, Study]:
    """By entry, this machine's sweeps of the installed code."""
    here = fingerprint("cpu", 1).key
    studies, _ = read_studies(folder)
    return {
        each.technique: each
        for each in studies
        if each.machine.key == here and each.baseline == BASELINE and not each.unverified()
    }


def sentence(study: Study, evidence: str) -> str:
    """What the sweep's crossovers say by that evidence."""
    rows = [CrossoverRow(*row) for table in study.tables if table.name == CROSSOVERS for row in table.rows]
    return next((each.reading for each in rows if each.evidence == evidence), "unavailable: no link between ranks here")


def shown(ids: Sequence[str], kept: dict[str, Study]) -> Table:
    table = Table("entry", "measured", "modelled (alpha-beta)", "the paper's network", box=None, pad_edge=False)
    for id in ids:
        words = (
            [sentence(kept[id], each) for each in (MEASURED, MODELLED, PAPER)] if id in kept else ["missing", "", ""]
        )
        table.add_row(id, *words)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.crossovers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("entries", nargs="*", choices=[*swept(), []], default=[])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--busy", action="store_true", help="measure though others keep the cores busy")
    chosen = parser.parse_args()
    ids = chosen.entries or swept()
    missing = [id for id in ids if id not in kept_here(chosen.results)]
    for number, id in enumerate([] if chosen.dry_run else missing, 1):
        if (busy := busy_cores()) > MOST_BUSY and not chosen.busy:
            raise SystemExit(f"others keep {busy:.1f} cores busy: wait for an idle machine, or say --busy")
        print(f"{number} of {len(missing)}: {id}", end="", flush=True)
        start_s = time.monotonic()
        command = [sys.executable, "-m", "leantrain", "study", id, "-b", BASELINE, "--results", str(chosen.results)]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        print(f", {time.monotonic() - start_s:.0f} s{f', exit code {code}' if code else ''}", flush=True)
    Console(highlight=False).print(shown(ids, kept_here(chosen.results)))


if __name__ == "__main__":
    main()
