"""Has the commands that share records: publish ours, merge those of others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from suite.cli.options import RESULTS, Json, KnownResults, Results
from suite.cli.shared import MORE, Exit, app, escape, fail, many, out, understandable, warn


@app.command(rich_help_panel=MORE)
def publish(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FOLDER|HUB_DATASET",
            help="A folder, or a data set of the Hugging Face Hub: hf://datasets/OWNER/NAME.",
        ),
    ],
    folder: KnownResults = RESULTS,
    as_json: Json = False,
) -> None:
    """Publish the records for others: Parquet tables with a data set's card, in a folder or on the Hugging Face Hub.

    Every row has the whole record, its machine and its source. What was published there before is replaced, and must be
    among the records.
    """
    with understandable(as_json):
        from suite.record.store import Store
        from suite.topics.publish import publishing

        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        if not records.lines:
            fail(
                f"{folder} holds no records; measure some with: leantrain run --results {folder}", Exit.NOTHING, as_json
            )
        if to.startswith(publishing.HUB):
            address, lines = publishing.upload(records, to.removeprefix(publishing.HUB))
        elif "://" in to or to.startswith("hf:"):
            raise ValueError(f"{to} is neither a folder nor a data set of the Hub: {publishing.HUB}OWNER/NAME")
        else:
            address, lines = to, publishing.write(records, Path(to))
        home = str(Path.home())
        if private := sum(home in line.model_dump_json() for line in lines):
            warn(f"{many(private, 'record')} name paths below {home}: look at them before others do")
    if as_json:
        print(json.dumps({"address": address, "records": Counter(line.kind for line in lines)}))
    else:
        machines = {publishing.machine_of(line) for line in lines}
        out.print(escape(f"{many(len(lines), 'record')} of {many(len(machines), 'machine')}: {address}"))


@app.command(rich_help_panel=MORE)
def merge(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER|FILE...",
            help="What others published, a copy of their results folder, or files of either (.parquet, .jsonl).",
        ),
    ],
    folder: Results = RESULTS,
    as_json: Json = False,
) -> None:
    """Take other people's records into the results folder: all that is new and sound, at once or not at all.

    They keep their machine and say where they came from; nothing that is there already is changed. Exit code 2 if a
    line was refused: it is damaged, of another schema, or contradicts the one here with its id.
    """
    with understandable(as_json):
        from suite.topics.publish.merging import merge as merged_into

        merged = merged_into(paths, folder)
    for sentence in merged.refused:
        warn(sentence)
    if as_json:
        added = Counter(line.kind for line in merged.added)
        print(json.dumps({"added": added, "known": merged.known, "refused": merged.refused}))
    else:
        parts = [f"{many(len(merged.added), 'record')} added to {folder}", f"{merged.known} known already"]
        out.print(escape(", ".join([*parts, *([f"{len(merged.refused)} refused"] if merged.refused else [])])))
    if merged.refused:
        raise typer.Exit(int(Exit.USAGE))
