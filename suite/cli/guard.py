"""Has the commands that guard a repository: examine kernels, check a tree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suite.cli.options import (
    RESULTS,
    THREADS,
    Baselines,
    Device,
    Json,
    Recipes,
    Results,
    SizeOption,
    Slower,
    Techniques,
    Threads,
    check_installed,
    having,
    minutes_option,
    share_of,
)
from suite.cli.shared import GUARD, MORE, Exit, app, bar, escape, out, show_table, understandable, warn

if TYPE_CHECKING:
    from suite.guard.check import Selection
    from suite.guard.findings import Finding
    from suite.guard.regression import Reference


@app.command(rich_help_panel=MORE)
def kernels(
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Techniques that have a kernel. [all]", autocompletion=having("kernel.py")),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Correctness and machine code only, no timing.")] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure what this device takes for single operators and for the baselines' steps, and keep it.",
        ),
    ] = False,
    device: Device = "cpu",
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Examine the Triton kernels: right, within their machine-code budgets; on a GPU how near their floor, and peers.

    Without a GPU they are checked under Triton's interpreter, and compiled for Hopper all the same. Exit code 1 if one
    is wrong or over its budget. With --calibrate they are left alone: the device's own operators are timed, in minutes,
    and kept; what is said is how well they foretell the baselines' steps.
    """
    with understandable(as_json):
        from suite.entries.setting import check_device
        from suite.guard import kernel_report as report

        check_device(device)
        if calibrate:
            if ids or check:
                raise ValueError("--calibrate times the device's own operators: leave out techniques and --check")
            return _calibrate_operators(device, folder, as_json)
        entries = report.selected(ids or ())
        timed = device == "cuda" and not check
        with bar(quiet=as_json) as progress:
            rows = report.rows(entries, device, timed, progress)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        columns = report.CHECK_COLUMNS + (report.TIME_COLUMNS if timed else ())
        show_table(columns, [report.line(row, timed) for row in rows])
        for row in rows:
            for violation in row.violations:
                out.print(escape(f"{row.technique}/{row.kernel}: {violation}"))
        if not timed and not check:
            out.print("time, per cent of floor, launch cost and peers: unavailable (they need --device cuda)")
    if not rows:
        raise typer.Exit(int(Exit.NOTHING))
    if any(row.violations for row in rows):
        raise typer.Exit(int(Exit.REGRESSED))


def _calibrate_operators(device: str, folder: Path, as_json: bool) -> None:
    """Measures this device's operators, and keeps them in its machine's folder."""
    from suite.record.machine import fitness
    from suite.topics.modelled_time import device_samples as own_device
    from suite.topics.modelled_time.device_model import calibrated
    from suite.topics.modelled_time.own_device.device import measured

    for sentence in fitness(device):
        warn(sentence)
    with bar(quiet=as_json) as progress:
        known = measured(device, progress)
    path = own_device.write(known, folder / known.machine)
    said = calibrated(known)
    if as_json:
        print(json.dumps({"path": str(path), "report": said, "refused": known.refused}, indent=1))
        return
    for line in said:
        out.print(escape(line))
    out.print(f"kept in {escape(str(path))}")


@app.command(rich_help_panel=GUARD)
def check(
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="A reference file, or a git revision to check out beside this one, whose code then runs here: name "
            "one that you trust.",
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write a reference file of this tree.")] = None,
    kernels_: Annotated[
        bool, typer.Option("--kernels", help="Only examine the kernels, as leantrain kernels --check does.")
    ] = False,
    techniques: Techniques = None,
    on: Baselines = None,
    size: SizeOption = "nano",
    recipe: Recipes = None,
    device: Device = "cpu",
    threads: Threads = THREADS,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Changed losses and removed techniques are meant.")
    ] = False,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Time the tree in turns with a git revision, and that with itself: for any machine, busy or not.",
        ),
    ] = False,
    slower: Slower = None,
    minutes: Annotated[float, minutes_option("What --speed may take, of all items.")] = 10.0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            help="Judge one try of many against a revision, keep or discard, and write it into this ledger: the share "
            "of false keeps stays below 5 % however many tries there are.",
        ),
    ] = None,
    faster: Annotated[
        str, typer.Option("--faster", metavar="SHARE", help="The speed-up that a try of --ledger hopes for.")
    ] = "5%",
    badge: Annotated[Path | None, typer.Option("--badge", help="Write what was found as a badge, an SVG.")] = None,
    summary: Annotated[Path | None, typer.Option("--summary", help="Append a Markdown summary to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Guard a repository: did exact costs, training or speed change against a stored reference or another revision?

    A revision's code, of its techniques and whatever Python loads from its tree, runs as you, like that of the working
    tree. Both see a minimal environment, without the tokens of a CI job.

    Speed is checked with --speed; else the first line says "speed: not checked".

    Exit code 1 if something regressed, 3 if a comparison could not decide, 4 if this machine is unfit to time (the
    revision came out slower than itself), 5 if a run failed.
    """
    with understandable(as_json):
        if [against is not None, save is not None, kernels_].count(True) != 1:
            raise ValueError("name one of --against REF, --save FILE and --kernels")
        from suite.guard.check import is_reference

        wanted = share_of("10%" if slower is None else slower) if speed or slower is not None else None
        if wanted and (against is None or is_reference(against)):
            raise ValueError("--speed times code: name a git revision, --against REV")
        if not kernels_:
            check_installed()
        from suite.entries.setting import check_device
        from suite.guard import check as checks
        from suite.guard import regression

        check_device(device)
        if kernels_:
            return kernels(check=True, device=device, as_json=as_json)
        selection = checks.Selection.of(techniques or (), on or (), recipe or ("modern",), size, device, threads)
        if ledger is not None:
            if against is None or is_reference(against):
                raise ValueError("--ledger tries code: name a git revision, --against REV")
            return _try(against, selection, ledger, share_of(faster), minutes, as_json)
        with bar(quiet=as_json) as progress:
            if save is not None:
                return _save(checks.counted(selection, progress), save, as_json)
            assert against is not None
            timing = checks.SpeedBudget(wanted, minutes) if wanted else None
            findings = checks.against(against, selection, timing, progress, warn)
        code = regression.exit_code(findings, accept_changes)
        _write(badge, summary, findings, code, against)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        out.print(escape(f"against {against}: {regression.tally(findings)}"))
        if said := regression.notable(findings):
            show_table(
                ("verdict", "item", "seen"),
                [(finding.verdict, finding.item, finding.details) for finding in said],
                whole=(0, 1),
            )
    if code:
        raise typer.Exit(code)
    return None


def _try(against: str, selection: Selection, path: Path, faster: float, minutes: float, as_json: bool) -> None:
    """Judges one try; exit code 0 for keep, 1 for discard, 3 where it is undecided."""
    from suite.guard.ledger import Ledger
    from suite.guard.tries import tried

    with bar(quiet=as_json) as progress:
        answer = tried(against, selection, Ledger(path), faster, minutes, progress)
    if as_json:
        print(json.dumps(answer.as_dict(), indent=1))
    else:
        out.print(escape(answer.sentence))
    if code := {"keep": 0, "discard": int(Exit.REGRESSED), "undecided": int(Exit.INCONCLUSIVE)}[answer.decision]:
        raise typer.Exit(code)


def _save(stored: Reference, path: Path, as_json: bool) -> None:
    """Writes a reference file, and says of how many items it is."""
    from suite.guard import regression

    regression.save(stored, path)
    items = len(stored.jobs)
    print(json.dumps({"saved": str(path), "items": items}) if as_json else f"{items} items saved to {path}")


def _write(badge: Path | None, summary: Path | None, findings: Sequence[Finding], code: int, against: str) -> None:
    """Writes what was found as a badge, and behind a summary in Markdown, where these are wanted."""
    from suite.guard import regression

    if badge:
        from suite.record.files import replacing
        from suite.topics.board.badge import of_check

        with replacing(badge) as file:
            file.write_text(of_check(findings, code), encoding="utf-8")
    if summary:
        with summary.open("a", encoding="utf-8") as file:
            file.write(regression.markdown(findings, against))
