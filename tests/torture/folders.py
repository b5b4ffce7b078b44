"""Results folders that are read-only, full of links, or used by two runs at once, with the real command line."""

from __future__ import annotations

import shutil
import stat
from collections import Counter
from collections.abc import Iterator

from suite.record.store import Store
from tests import factories, plugin
from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, SHORT, Place, at_once, place

BODIES = {"still": "pass"}
REPORTS = (("leaderboard", "--format", "csv"), ("claims",), ("history",), ("leaderboard", "--write", "rows.csv"))


def attack(scale: Scale) -> Iterator[Row]:
    with at_once() as pool:
        read_only = Counter(pool.map(lambda _: of_read_only(), range(scale.trials(4))))
        linked = Counter(pool.map(lambda _: of_links(), range(scale.trials(4))))
    yield row("reports of a read-only folder of results", read_only)
    yield row("reports of results behind links, of a link to itself and of one that leads nowhere", linked)
    yield row("two runs at once into one folder", Counter(two_at_once() for _ in range(scale.trials(5))))


def filled(where: Place) -> None:
    for each in factories.evidence("x"):
        Store(where.results).append(each, "sound")


def reported(where: Place) -> str:
    """What is wrong with the reports; empty where nothing is."""
    for arguments in REPORTS:
        process = where.start(*arguments)
        _, warned = process.communicate(timeout=LIMIT_S)
        if b"Traceback" in warned or process.returncode not in (0, 1, 3):
            return f"{arguments[0]}: exit code {process.returncode}"
        if arguments == ("leaderboard", "--write", "rows.csv") and b"x" not in (where.folder / "rows.csv").read_bytes():
            return "the sound records are gone"
    return ""


def of_read_only() -> str:
    with place(BODIES) as where:
        filled(where)
        before = {each: each.stat().st_mtime_ns for each in where.results.rglob("*")}
        for each in (*before, where.results):
            each.chmod(each.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        wrong = reported(where)
        after = {each: each.stat().st_mtime_ns for each in where.results.rglob("*")}
        for each in (where.results, *after):
            each.chmod(each.stat().st_mode | stat.S_IWUSR)
        return wrong or ("held" if before == after else "something was written")


def of_links() -> str:
    with place(BODIES) as where:
        filled(where)
        real = where.folder / "elsewhere"
        shutil.move(where.results, real)
        where.results.mkdir()
        (where.results / "sound").symlink_to(real / "sound")
        for name, target in {"itself": where.results / "itself", "nowhere": where.folder / "no such"}.items():
            (where.results / name).symlink_to(target)
        (where.results / "round").mkdir()
        (where.results / "round" / "learned.jsonl").symlink_to(where.results / "round" / "learned.jsonl")
        (where.results / "zero").mkdir()
        (where.results / "zero" / "timed.jsonl").symlink_to("/dev/zero")
        return reported(where) or "held"


def two_at_once() -> str:
    """Both end; what one says is stored is there, once, and a refusal names the other."""
    with place(BODIES) as where:
        runs = [where.start("run", "-t", "still", *SHORT) for _ in range(2)]
        ended = [(each, *each.communicate(timeout=LIMIT_S)) for each in runs]
        refused = [warned for run, _, warned in ended if run.returncode != 0]
        if any(b"Traceback" in warned for *_, warned in ended):
            return "a traceback"
        if len(refused) > 1 or any(b"another run is writing" not in each for each in refused):
            return f"exit codes {[run.returncode for run, *_ in ended]}"
        if left := where.left():
            return left
        records = plugin.records(where.results)
        seeds = [(each.stack, each.conditions.key, each.seed) for each in records.learned]
        return "held" if seeds and len(seeds) == len({*seeds}) else "a run that was learned twice, or none"
