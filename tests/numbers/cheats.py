"""All planted cheats, and what no accident may fool on every baseline: ``python -m tests.numbers.cheats [-b bert]``.

Of the accidents each is a technique of ``tests/cheats/planted.py`` that writes to the batches it is scored by, computes
where no counter looks, does less when it is timed, answers with a number that is none, or does something to others.
None may end as ok, and whoever is tried beside it must.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suite.entries.installed import baselines
from suite.record.job import BASELINE
from tests.cheats import planted, tried


def outcomes(root: Path, baseline: str) -> dict[str, list[str]]:
    """Status and reason of each, and of what plays by the rules beside them, by name."""
    found: dict[str, list[str]] = {}
    for how, names in planted.OF_ALL_BASELINES.items():
        ended = tried.ends(root, how, [tried.HONEST, *names], baseline)
        found |= {f"{name} ({how})" if name in (tried.HONEST, BASELINE) else name: end for name, end in ended.items()}
    return found


def uncaught(root: Path) -> dict[str, list[str]]:
    """The ends of all planted cheats that are not what they should be, by name."""
    honest = [f"{tried.HONEST} of {baseline}" for baseline in {"gpt", *planted.ON.values()}]
    learned = tried.ends(root, "learn", [*honest, *planted.LEARNED])
    ended = learned | tried.ends(root, "time", planted.TIMED)
    beside = {name: learned[f"{tried.HONEST} of {planted.ON.get(name, 'gpt')}"] for name in planted.CHEATS}
    expected = {name: end for name, end in ended.items() if name in planted.UNCAUGHT and end[0] == "ok"}
    return {
        name: ended[name]
        for name in planted.CHEATS
        if name not in expected and not planted.is_caught(name, ended[name], beside[name])
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.cheats", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-b", "--baselines", nargs="+", default=list(baselines()), metavar="NAME")
    chosen = parser.parse_args()
    console = Console(width=160, highlight=False, soft_wrap=True)
    table = Table("", *chosen.baselines, box=None, pad_edge=False)
    with tempfile.TemporaryDirectory() as folder:
        root = tried.installed(Path(folder))
        through = uncaught(root)
        found = {baseline: outcomes(root, baseline) for baseline in chosen.baselines}
    cheats = [name for names in planted.OF_ALL_BASELINES.values() for name in names]
    for name in next(iter(found.values())):
        table.add_row(name, *(found[baseline][name][0] for baseline in chosen.baselines))
    console.print(table)
    for baseline, ended in found.items():
        for name, (status, reason, *_) in ended.items():
            if reason:
                console.print(f"{baseline}, {name}: {status}: {reason}", markup=False)
    console.print(f"{len(through)} of {len(planted.CHEATS)} planted cheats do not end as their table says")
    for name, end in through.items():
        console.print(f"{name}: {end}", markup=False)
    fooled = sum(found[baseline][name][0] == "ok" for baseline in found for name in cheats)
    blamed = sum(end[0] != "ok" for ended in found.values() for name, end in ended.items() if name not in cheats)
    console.print(f"{fooled} of {len(found) * len(cheats)} end as ok; {blamed} beside them do not")


if __name__ == "__main__":
    main()
