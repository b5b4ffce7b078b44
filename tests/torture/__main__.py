"""``python -m tests.torture [--share 0.1] [--write FILE] [ATTACK ...]``: makes the attacks and prints their table."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys
import time
import traceback
from pathlib import Path

from tests import torture
from tests.torture import Attack, Row, Scale

HEADING = """\
# Torture

What `make torture` printed on this machine. Real signals, processes, files and disks; each trial looks for what was
lost, left behind, or ended in a traceback.

"""


def attacks() -> dict[str, Attack]:
    """Every attack of this package by its module's name."""
    modules = {each.name: importlib.import_module(f"tests.torture.{each.name}")
               for each in pkgutil.iter_modules(torture.__path__) if each.name != "__main__"}  # fmt: skip
    return {name: module.attack for name, module in sorted(modules.items()) if hasattr(module, "attack")}


def main() -> int:
    known = attacks()
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=f"some of: {', '.join(known)} [all]")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials [1]")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table to this file")
    asked = parser.parse_args()
    if foreign := sorted(set(asked.names) - set(known)):
        parser.error(f"no attack is called {', '.join(foreign)}; there are: {', '.join(known)}")
    start_s = time.monotonic()
    rows: list[Row] = []
    print("| test | trials | outcome |\n|---|---|---|", flush=True)
    for name in asked.names or known:
        try:
            for each in known[name](Scale(asked.share)):
                rows.append(each)
                print(line(each), flush=True)
        except Exception as error:  # of one attack; the others are made
            traceback.print_exc()
            rows.append(Row(name, 0, f"the attack itself failed: {type(error).__name__}: {error}", held=False))
            print(line(rows[-1]), flush=True)
    if asked.write:
        asked.write.write_text(document(rows, asked.share, time.monotonic() - start_s), "utf-8")
    failed = [each for each in rows if not each.held]
    print(f"{len(rows) - len(failed)} of {len(rows)} tests held", file=sys.stderr)
    return bool(failed)


def line(each: Row) -> str:
    """A row of the table in Markdown."""
    cells = (each.test, str(each.trials), each.outcome + ("" if each.held else " **did not hold**"))
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def document(rows: list[Row], share: float, seconds: float) -> str:
    """The table as a page."""
    of = "the usual numbers of trials" if share == 1 else f"{share:g} of the usual numbers of trials"
    where = f"{of}, {seconds / 60:.0f} min, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    return (
        HEADING
        + "\n".join([f"With {where}.", "", "| test | trials | outcome |", "|---|---|---|", *map(line, rows)])
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
