"""Rows whose true headline is 1, from end to end: ``python -m tests.numbers.aa [--rows gpt=3 ...]``.

A planted technique multiplies every weight by 1 + 3 % noise before the first step: other noise for each row, and no
effect that matters. Its rows are measured as every row of the board is, learned and timed, against the references and
their scaling curves that the results folder has. Their 95 % intervals should hold 1 as often as they say, and be short:
of a step's time, of the equivalent budget, and of the time to the same quality, which has both. Rows of one ``run`` are
timed beside one reference, a few at a time, and miss together; ``--alone`` compares one after the other.
Learning does not mind other work, and timing does: ``--no-time`` leaves it out, as a busy machine does, and a second
call with the same ``--into`` catches up on it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

from rich.console import Console
from rich.table import Table

from suite.entries.catalogue import lookup
from suite.entries.installed import baselines
from suite.judge.statistics import false_alarm_interval
from tests import plugin

ROWS = {"gpt": 3, "bert": 3, "vit": 2, "mae": 2}
WITHIN = 0.10
METRICS = ("step_time", "equivalent_budget", "time_to_quality")
PLANTED = """\
noise_seed: int = 0

def model(self, model, run):
    noise = torch.Generator().manual_seed(1000 * self.noise_seed + run.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.03 * torch.randn(parameter.shape, generator=noise))
    return model
"""


def rows_of(text: str) -> tuple[str, int]:
    """A baseline and how many rows, of ``gpt=40``. Raises ArgumentTypeError."""
    baseline, _, count = text.partition("=")
    try:
        lookup("baseline", baseline, baselines())
        return baseline, int(count)
    except (LookupError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} is no baseline=count: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.aa", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    default = " ".join(f"{baseline}={count}" for baseline, count in ROWS.items())
    parser.add_argument("--rows", nargs="+", type=rows_of, default=[*ROWS.items()], metavar="BASELINE=N", help=default)
    parser.add_argument("--results", type=Path, default=Path("results"), help="what is known of the references")
    parser.add_argument("--into", type=Path, help="keeps the rows' evidence, and goes on with what is there")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30, help="for each baseline, or row that is alone")
    parser.add_argument("--timings", type=int, default=3)
    parser.add_argument(
        "--alone", action="store_true", help="compare each row by itself: none share a reference's process"
    )
    parser.add_argument("--no-time", action="store_true", help="count and learn only")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        into = chosen.into or Path(scratch, "results")
        if not into.exists():
            copytree(chosen.results, into)
        into = into.resolve()
        root = plugin.write(Path(scratch), {"perturbed": PLANTED})
        card = root / "planted_faults" / "planted" / "perturbed" / "card.toml"
        card.write_text(card.read_text().replace('["gpt"]', '["bert", "gpt", "vit", "mae"]'))
        environment = plugin.environment(root, idle=False)
        effort = ["--seeds", chosen.seeds, "--minutes", chosen.minutes, "--timings", chosen.timings]
        effort += ["--no-time"] if chosen.no_time else []
        for baseline, count in chosen.rows:
            stacks = [f"perturbed:noise_seed={number + 1}" for number in range(count)]
            together = ["run", *(part for stack in stacks for part in ("-t", stack))]
            for words in [["compare", stack] for stack in stacks] if chosen.alone else [together]:
                command = plugin.command(*words, "-b", baseline, *effort, "--results", into)
                subprocess.run(command, env=environment, cwd=root, check=False)
        board = plugin.command("leaderboard", "--json", "--results", into, "--write", root / "board.csv")
        shown = subprocess.run(board, env=environment, cwd=root, check=True, capture_output=True, text=True)
    show([row for row in json.loads(shown.stdout) if row["stack"].startswith("perturbed")])


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the rows, and how often the intervals of each metric hold 1."""
    table = Table("row", "seeds", "sets", *METRICS, box=None, pad_edge=False)
    missed, short, of = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        shown = []
        for metric in METRICS:
            interval = row["metrics"][metric]["interval"]
            if interval is None or None in (interval["low"], interval["high"]):
                shown.append("-")
                continue
            low, high = interval["low"], interval["high"]
            misses = not low <= 1 <= high
            missed[metric] += misses
            short[metric] += low >= 1 - WITHIN and high <= 1 + WITHIN
            of[metric] += 1
            shown.append(f"×{interval['estimate']:.3f} [{low:.3f}, {high:.3f}]" + "!" * misses)
        name = f"{row['stack'].removeprefix('perturbed:noise_')} on {row['conditions']['baseline']}"
        table.add_row(name, str(len(row["seeds"])), str(row["timings"]), *shown)
    console = Console(width=120, highlight=False)
    console.print(table)
    for metric, count in of.items():
        exact = false_alarm_interval(missed[metric], count)
        console.print(
            f"{metric}: {missed[metric]} of {count} intervals miss 1 ({exact.low:.1%} to {exact.high:.0%}); "
            f"{short[metric]} within 10 %"
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
