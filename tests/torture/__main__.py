"""``python -m tests.torture [--share 0.1] [--keep] [ATTACK ...]``: makes the attacks and prints their rows."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Iterator

from tests.torture import Attack, Row, Scale
from tests.torture.table import attacks, keep, told


def main() -> int:
    known: dict[str, Attack] = {
        name: importlib.import_module(f"tests.torture.{name}").attack for name in sorted(attacks())
    }
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=f"some of: {', '.join(known)} [all]")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials [1]")
    parser.add_argument("--keep", action="store_true", help="keep each attack's rows in the committed table")
    asked = parser.parse_args()
    if foreign := sorted(set(asked.names) - set(known)):
        parser.error(f"no attack is called {', '.join(foreign)}; there are: {', '.join(known)}")
    rows: list[Row] = []
    for name in asked.names or known:
        load, made = os.getloadavg()[0], []
        for each in made_of(name, known[name], Scale(asked.share)):
            made.append(each)
            print(f"{name}: {each.test}: {each.trials} trials: {told(each)}", flush=True)
        if asked.keep:
            keep(name, made, asked.share, load)
        rows += made
    failed = [each for each in rows if not each.held]
    print(f"{len(rows) - len(failed)} of {len(rows)} tests held", file=sys.stderr)
    return bool(failed)


def made_of(name: str, attack: Attack, scale: Scale) -> Iterator[Row]:
    """The rows of one attack; of one that fails itself, a row that says so."""
    try:
        yield from attack(scale)
    except Exception as error:  # the others are made
        traceback.print_exc()
        yield Row(name, 0, f"the attack itself failed: {type(error).__name__}: {error}", held=False)


if __name__ == "__main__":
    sys.exit(main())
