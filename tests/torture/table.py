"""The table of the attacks: rows are kept by attack in ``made.json``, so that attacks may be made one by one, and the
page of all of them is drawn from that."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from suite.record.files import Stored, read_plain_text, replacing, write_json
from tests.torture import Row

HERE = Path(__file__).parent
MADE, PAGE = HERE / "made.json", HERE / "README.md"
CODE = ("suite", "techniques", "baselines")
"""What is attacked."""

HEADING = """\
# Torture

What `make torture` found: real signals, processes, files and disks. Each trial looks for what was lost, left behind, or
ended in a traceback. *Share* is of the usual number of trials; *load* is how many processes wanted the machine's cores
before an attack began (its own take what is left); *code* is the revision that was attacked. `python -m tests.torture
--keep ATTACK` makes an attack again, and its rows take the place of those that are here.

"""
COLUMNS = ("attack", "test", "trials", "share", "outcome", "made", "load", "code")


class Tried(Stored):
    """A row of the table. ``held``: nothing was lost, left behind, unnamed, or ended in a traceback."""

    test: str
    trials: int = Field(ge=0)
    outcome: str
    held: bool


class Made(Stored):
    """An attack as it was made last: when, on what, of which code."""

    attack: str
    share: float = Field(gt=0)
    day: str
    code: str
    machine: str
    load: float | None = None
    rows: tuple[Tried, ...]


class Table(Stored):
    """All attacks that were made, each once."""

    made: tuple[Made, ...] = ()

    def with_newer(self, newer: Made) -> Table:
        """This table with an attack in the place of what is known of it, by name."""
        others = [each for each in self.made if each.attack != newer.attack]
        return Table(made=tuple(sorted([*others, newer], key=lambda each: each.attack)))


def read(path: Path = MADE) -> Table:
    """What is known; nothing where there is no file."""
    return Table.model_validate_json(read_plain_text(path)) if path.exists() else Table()


def keep(attack: str, rows: Sequence[Row], share: float, load: float, path: Path = MADE, page: Path = PAGE) -> None:
    """Puts what an attack has come to in the place of what was known of it, and draws the page anew."""
    tried = tuple(Tried(test=each.test, trials=each.trials, outcome=each.outcome, held=each.held) for each in rows)
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{os.cpu_count()} cores, {platform.system()} {kernel}"
    newer = Made(
        attack=attack,
        share=share,
        day=datetime.now(UTC).date().isoformat(),
        code=revision(),
        machine=machine,
        load=round(load, 1),
        rows=tried,
    )
    table = read(path).with_newer(newer)
    write_json(table, path)
    with replacing(page) as partial:
        partial.write_text(drawn(table), "utf-8")


def revision() -> str:
    """The commit of the code that is attacked, with a plus where it was changed since."""
    commit, changed = (
        subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
        for arguments in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", *(f":/{c}" for c in CODE)])
    )
    return commit + "+" * bool(changed)


def drawn(table: Table) -> str:
    """The page."""
    machines = sorted({each.machine for each in table.made})
    parts = [each.attack for each in table.made if each.share < 1]
    never = sorted(attacks() - {each.attack for each in table.made})
    left = [f"{what}: {', '.join(names)}." for what, names in (("In part", parts), ("Not yet", never)) if names]
    lines = [_line(COLUMNS), "|" + "---|" * len(COLUMNS)]
    for each in table.made:
        lines += [
            _line(
                [
                    each.attack,
                    row.test,
                    f"{row.trials:,}",
                    f"{each.share:g}",
                    told(row),
                    each.day,
                    "" if each.load is None else f"{each.load:g}",
                    each.code,
                ]
            )
            for row in each.rows
        ]
    said = " ".join([f"Made on {'; '.join(machines)}.", *left])
    return f"{HEADING}{said}\n\n" + "\n".join(lines) + "\n"


def attacks() -> set[str]:
    """The names of all modules that make an attack."""
    return {path.stem for path in HERE.glob("*.py") if "\ndef attack(" in path.read_text("utf-8")}


def told(row: Row | Tried) -> str:
    """Its outcome, and that it did not hold where it did not."""
    return row.outcome + ("" if row.held else " **did not hold**")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
