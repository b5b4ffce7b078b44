"""Has the commands that share records: publish ours, merge those of others."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from suite.cli.options import RESULTS, Json, KnownResults, Results
from suite.cli.shared import MORE, Exit, app, escape, fail, many, out, understandable, warn

Trust = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trust configuration (JSON) of another Sigstore than the public one.",
        show_default=False,
    ),
]


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
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign that this CI job ran our records, by its identity (Sigstore).")
    ] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Publish the records for others: Parquet tables with a data set's card, in a folder or on the Hugging Face Hub.

    Every row has the whole record, its machine and its source. What was published there before is replaced, and must be
    among the records.
    """
    with understandable(as_json):
        from suite.record.store import Store
        from suite.topics.publish import publishing
        from suite.topics.publish.signing import Signer

        signer = Signer(trust) if sign else None
        records, problems = Store(folder).read()
        for problem in problems:
            warn(problem)
        if not records.lines:
            fail(
                f"{folder} holds no records; measure some with: leantrain run --results {folder}", Exit.NOTHING, as_json
            )
        if to.startswith(publishing.HUB):
            address, lines = publishing.upload(records, to.removeprefix(publishing.HUB), signer)
        elif "://" in to or to.startswith("hf:"):
            raise ValueError(f"{to} is neither a folder nor a data set of the Hub: {publishing.HUB}OWNER/NAME")
        else:
            address, lines = to, publishing.write(records, Path(to), signer)
        home = str(Path.home())
        if private := sum(home in line.model_dump_json() for line in lines):
            warn(f"{many(private, 'record')} name paths below {home}: look at them before others do")
    if as_json:
        print(json.dumps({"address": address, "records": Counter(line.kind for line in lines), "signed": sign}))
    else:
        machines = {publishing.machine_of(line) for line in lines}
        by = "signed" if sign else "unsigned"
        out.print(escape(f"{many(len(lines), 'record')} of {many(len(machines), 'machine')}, {by}: {address}"))


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
    require_signed: Annotated[
        str,
        typer.Option(
            metavar="IDENTITY",
            help="Take only what this identity signed (publish --sign), e.g. "
            "https://github.com/OWNER/NAME/.github/workflows/run.yml@refs/heads/main.",
        ),
    ] = "",
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Take other people's records into the results folder: all that is new and sound, at once or not at all.

    They keep their machine and say where they came from; nothing that is there already is changed. Exit code 2 if a
    line was refused: it is damaged, of another schema, contradicts the one here with its id, or is not signed as was
    required.
    """
    with understandable(as_json):
        from suite.topics.publish.merging import merge as merged_into
        from suite.topics.publish.signing import STATEMENT, verified

        verify = partial(verified, identity=require_signed, trust=trust) if require_signed else None
        merged = merged_into(paths, folder, verify)
    unsigned = not all((path / STATEMENT).is_file() for path in paths)
    signed = f"signed by {require_signed}" if require_signed else "unsigned" if unsigned else "signature not verified"
    for sentence in merged.refused:
        warn(sentence)
    if as_json:
        added = Counter(line.kind for line in merged.added)
        known = {"known": merged.known, "refused": merged.refused, "signed": require_signed or None}
        print(json.dumps({"added": added} | known))
    else:
        parts = [f"{many(len(merged.added), 'record')} added to {folder}", f"{merged.known} known already", signed]
        out.print(escape(", ".join([*parts, *([f"{merged.left_out} refused"] if merged.refused else [])])))
    if merged.refused:
        raise typer.Exit(int(Exit.USAGE))
