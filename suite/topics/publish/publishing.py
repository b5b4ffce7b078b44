"""Records for others: a data set of Parquet tables with its card and metadata, in a folder or on the Hub.

There is a table for each kind of evidence, a row for each record: columns to look at and to choose by, where it came
from, and the whole record as JSON in the last one. :mod:`suite.topics.publish.merging` reads that back, so nothing is
lost.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.record.files import read_plain, replacing
from suite.record.schema import COUNTS, SCHEMA_VERSION, Line, Renewal
from suite.record.seal import sealed
from suite.record.store import Records, parse_sealed
from suite.record.text import in_markdown, printable
from suite.topics.publish import data_set_metadata
from suite.topics.publish.export import ColumnType, TidyTable, as_parquet
from suite.topics.publish.merging import RECORD, read_parquet
from suite.topics.publish.signing import STATEMENT, Signer, signer_of

HUB = "hf://datasets/"
CARD = "README.md"
MARK = "leantrain-records"
"""The tag by which a folder is known as one of ours, on the Hub too."""


@dataclass(frozen=True)
class Column:
    """Describes a column of a published table: its type, what it is, and its value in a record."""

    type: ColumnType
    meaning: str
    of: Callable[[Any], Any]


def _from(name: str) -> Callable[[Any], Any]:
    return lambda line: getattr(line.conditions, name)


_CONDITIONS: dict[str, str] = {
    "baseline": "what was trained",
    "baseline_version": "records of other versions are not comparable",
    "size": "of the baseline",
    "recipe": "classic, modern or compiled",
    "task": "pretrain or adapt",
    "rate": "what the recipe's learning rate is multiplied by",
    "data": "what the examples are",
    "data_sha256": "hash of the examples",
    "model": "the user's model; empty: the baseline's own",
    "device": "cpu or cuda",
    "threads": "CPU threads",
}
_TYPES: dict[str, ColumnType] = {"baseline_version": "integer", "rate": "real", "threads": "integer"}
_EVERY: dict[str, Column] = {
    "id": Column("text", "of the record, unique everywhere", lambda line: line.id),
    "source": Column("text", "the collection that it was first published in", lambda line: line.source),
    "machine": Column("text", "the machine that measured it", lambda line: line.machine.name),
    "machine_key": Column("text", "hash of the facts that decide comparability", lambda line: line.machine.key),
    "numerics": Column("text", "the arithmetic of its runs: avx2 is portable", lambda line: line.numerics),
    "started": Column("text", "ISO 8601, UTC", lambda line: line.started),
    "duration_s": Column("real", "seconds that measuring it took", lambda line: line.duration_s),
    "leantrain": Column("text", "the version that measured it", lambda line: line.leantrain),
    **{name: Column(_TYPES.get(name, "text"), meaning, _from(name)) for name, meaning in _CONDITIONS.items()},
    "reference_steps": Column("integer", "training steps of the reference", _from("steps")),
}
_ENDED: dict[str, Column] = {
    "stack": Column("text", "baseline, or the techniques", lambda line: line.stack),
    "status": Column("text", "how the run ended", lambda line: line.status),
    "reason": Column("text", "of a failure", lambda line: line.reason),
    "code": Column("text", "hash of the code that decides the run", lambda line: line.code.trajectory),
}
_TRAINED: dict[str, Column] = {
    "seed": Column("integer", "of initialisation and batches", lambda line: line.seed),
    "steps": Column("integer", "training steps of this run", lambda line: line.steps),
    "test_loss": Column("real", "after the last step", lambda line: line.final.loss if line.final else None),
    "cpu_s": Column("real", "processor seconds of the training steps", lambda line: line.cpu_s),
}


def _first_count(name: str) -> Callable[[Any], Any]:
    return lambda line: getattr(line.points[0].counters, name) if line.points else None


_COUNTED = {name: Column("integer", counted.title, _first_count(name)) for name, counted in COUNTS.items()}
_TIMED: dict[str, Column] = {
    "reference": Column("text", "the stack that the others are held against", lambda line: line.reference.stack),
    "stacks": Column(
        "text",
        "the others, separated by blanks",
        lambda line: " ".join(contender.stack for contender in line.contenders[1:]),
    ),
    "statuses": Column(
        "text",
        "how each ended, the reference first",
        lambda line: " ".join(contender.status for contender in line.contenders),
    ),
    "replicate": Column("integer", "number of the set of processes", lambda line: line.replicate),
    "pairing": Column("text", "interleaved or sequential", lambda line: line.pairing),
}
_RENEWAL: dict[str, Column] = {
    **{name: _EVERY[name] for name in ("id", "source")},
    "machine": Column("text", "the machine that repeated the run", lambda line: line.machine),
    "started": _EVERY["started"],
    "family": Column("text", "hash of the conditions", lambda line: line.family),
    "stack": _ENDED["stack"],
    "old": Column("text", "hash of the code before", lambda line: line.old),
    "new": Column("text", "hash of the code that repeats it to the bit", lambda line: line.new),
}
_RECORD = {
    RECORD: Column(
        "text",
        "the whole record, as JSON with its checksum",
        lambda line: sealed(line.model_dump_json().encode()).decode(),
    )
}
KINDS: Mapping[str, tuple[str, Mapping[str, Column]]] = {
    "counted": ("exact counts of training steps", _EVERY | _ENDED | _COUNTED | _RECORD),
    "learned": ("training runs: curves, test metrics, probes", _EVERY | _ENDED | _TRAINED | _RECORD),
    "timed": ("paired timings of fresh processes, raw samples", _EVERY | _TIMED | _RECORD),
    "witness": ("short runs that show that changed code computes the same", _EVERY | _ENDED | _TRAINED | _RECORD),
    "renewal": ("code changes that moved no bit", _RENEWAL | _RECORD),
}
"""Kind of record -> what it is, and the columns of its table."""


def table(lines: Iterable[Line], kind: str) -> TidyTable:
    """Builds the table of the records of a kind, one row each, oldest first."""
    columns = KINDS[kind][1]
    ours = sorted((line for line in lines if line.kind == kind), key=lambda line: (line.started, line.id))
    return TidyTable(
        {name: column.type for name, column in columns.items()},
        [{name: column.of(line) for name, column in columns.items()} for line in ours],
    )


def published(records: Records, source: str) -> list[Line]:
    """Returns all records with where they came from: those that were measured here from ``source``, the others as they
    say."""
    machines = {(run.conditions.family, run.stack): run.machine.name for run in (*records.learned, *records.witnesses)}
    lines = []
    for line in records.lines:
        changes = {} if line.source else {"source": source}
        if isinstance(line, Renewal) and not line.machine:
            changes["machine"] = machines.get((line.family, line.stack), "")
        lines.append(line.model_copy(update=changes) if changes else line)
    return lines


def files(lines: Sequence[Line], name: str, signer: Signer | None = None) -> dict[str, bytes]:
    """Returns the files of the data set by their path: a table for each kind that there is, what describes them to
    people and to other tools, and what ``signer`` signs of them.

    Raises ValueError, with the way out, where pyarrow is missing or nothing is signed.
    """
    kinds = Counter[str](line.kind for line in lines)
    tables = {f"data/{kind}.parquet": as_parquet(table(lines, kind)) for kind in KINDS if kinds[kind]}
    meanings = {
        kind: (what, {key: (column.type, column.meaning) for key, column in columns.items()})
        for kind, (what, columns) in KINDS.items()
    }
    statement = signer.sign(tables, name) if signer else b""
    whole = tables | {
        CARD: card(lines, name, signer_of(statement) if statement else "").encode(),
        "croissant.json": data_set_metadata.croissant(name, tables, meanings, lines),
        "codemeta.json": data_set_metadata.codemeta(),
        "eval.yaml": data_set_metadata.benchmark(name, lines),
        **({STATEMENT: statement} if statement else {}),
    }
    return whole | {"ro-crate-metadata.json": data_set_metadata.ro_crate(name, whole, lines)}


# the card -------------------------------------------------------------------------------------------------------------


def card(lines: Sequence[Line], name: str, signed_by: str = "") -> str:
    """Writes the card of a data set: what is in it, how to read it, where it came from, under which licence.

    ``signed_by``: who signed it; empty: nobody.
    """
    from huggingface_hub import DatasetCardData

    kinds = [kind for kind in KINDS if any(line.kind == kind for line in lines)]
    data = DatasetCardData(
        license="apache-2.0",
        pretty_name=name,
        tags=[MARK, "transformers", "efficient-training", "benchmark"],
        size_categories=[_size(len(lines))],
        configs=[
            {"config_name": kind, "data_files": f"data/{kind}.parquet", **({"default": True} if not at else {})}
            for at, kind in enumerate(kinds)
        ],
    )
    sections = [_head(name, lines, kinds), _use(name, kinds[0]), *(_schema(kind) for kind in kinds)]
    whole = [*sections, f"{_provenance(lines)}\n\n{_who_ran_them(name, signed_by)}", LICENCE]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(whole) + "\n"


LICENCE = """## Licence

Apache-2.0. If you use these measurements, cite leantrain and the papers of the techniques that you report."""


def _size(number: int) -> str:
    return "n<1K" if number < 1000 else "1K<n<10K" if number < 10_000 else "10K<n<100K" if number < 100_000 else "other"


def _head(name: str, lines: Sequence[Line], kinds: Sequence[str]) -> str:
    counts = Counter[str](line.kind for line in lines)
    rows = [f"| `{kind}` | {counts[kind]} | {KINDS[kind][0]} |" for kind in kinds]
    return "\n".join(
        [
            f"# {in_markdown(name)}",
            "",
            "Measurements by leantrain: what published techniques for training Transformers cost and bring, against "
            "fixed BERT, GPT, ViT and MAE baselines. Ratios, intervals and verdicts are computed from these records, "
            "and are not stored.",
            "",
            "| table | records | what |",
            "| :-- | --: | :-- |",
            *rows,
        ]
    )


def _use(name: str, kind: str) -> str:
    where = name if "/" in name else "FOLDER"
    return f"""## Use

```python
from datasets import load_dataset

{kind} = load_dataset("{where}", "{kind}", split="train").to_pandas()
```

Into a results folder of your own, beside what you measured; then `leantrain leaderboard` and `leantrain claims` judge
all of it:

```console
$ leantrain merge FOLDER
```"""


def _schema(kind: str) -> str:
    rows = [f"| `{name}` | {column.type} | {column.meaning} |" for name, column in KINDS[kind][1].items()]
    return "\n".join([f"## `{kind}`", "", "| column | type | what |", "| :-- | :-- | :-- |", *rows])


def _provenance(lines: Sequence[Line]) -> str:
    counts = Counter((line.source, machine_of(line)) for line in lines)
    rows = [
        f"| {in_markdown(source)} | {in_markdown(machine)} | {count} |"
        for (source, machine), count in sorted(counts.items())
    ]
    return "\n".join(
        [
            "## Provenance",
            "",
            "Every row names its source and its machine; the record has the machine's facts, the hashes of the code, "
            f"the versions of libraries and the data's hash. Schema version {SCHEMA_VERSION}.",
            "",
            "| source | machine | records |",
            "| :-- | :-- | --: |",
            *rows,
        ]
    )


def _who_ran_them(name: str, signed_by: str) -> str:
    if not signed_by:
        return "**Unsigned**: the checksum of each record shows damage; nobody vouches for who ran it."
    return f"""`{STATEMENT}` is a signed statement of who ran the records of {in_markdown(name)}; it is verified by

```console
$ leantrain merge FOLDER --require-signed {signed_by}
```"""


def machine_of(line: Line) -> str:
    """Returns the name of the machine that measured it; empty where an old line does not say."""
    return line.machine if isinstance(line, Renewal) else line.machine.name


# where it goes --------------------------------------------------------------------------------------------------------


def write(records: Records, folder: Path, signer: Signer | None = None) -> list[Line]:
    """Writes the records as a data set into ``folder``; returns them as published. Each file is replaced whole.

    Raises ValueError where the folder holds anything but an earlier, smaller publication.
    """
    lines = published(records, folder.resolve().name)
    _check(folder, {line.id for line in lines})
    content_of = files(lines, folder.resolve().name, signer)
    (folder / STATEMENT).unlink(missing_ok=True)  # it is of what was here before
    for name, content in content_of.items():
        with replacing(folder / name) as partial:
            partial.write_bytes(content)
    return lines


def _check(folder: Path, ids: set[str]) -> None:
    """Raises ValueError where publishing records of these ``ids`` in ``folder`` would lose something."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    readme = folder / CARD
    if not (readme.is_file() and MARK in read_plain(readme).decode("utf-8", "replace")):
        raise ValueError(f"{folder} holds something else than published records; name a new folder with --to")
    published = {
        parse_sealed((row[RECORD] or "").encode()).id
        for file in folder.glob("data/*.parquet")
        for row in read_parquet(file)
    }
    if lost := len(published - ids):
        raise ValueError(
            f"{folder} holds {lost} records that the results do not have; take them in first: leantrain merge {folder}"
        )


def upload(records: Records, repository: str, signer: Signer | None = None) -> tuple[str, list[Line]]:
    """Publishes the records as a data set of the Hugging Face Hub, ``owner/name``; returns its address and them.

    The data set is made where there is none; each publication is a commit, so earlier ones stay in its history. Raises
    ValueError with what the Hub says.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalTokenNotFoundError

    lines = published(records, repository)
    content = files(lines, repository, signer)
    hub = HfApi()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            for name, data in content.items():
                path = Path(temporary, name)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
            address = hub.create_repo(repository, repo_type="dataset", exist_ok=True)
            hub.upload_folder(
                repo_id=repository,
                repo_type="dataset",
                folder_path=temporary,
                commit_message=f"Publish {len(lines)} records",
                delete_patterns=STATEMENT,  # of what was there before; what is uploaded stays
            )
    except HFValidationError as error:
        raise ValueError(f"{repository!r} names no data set: {error}") from None
    except (HTTPError, LocalTokenNotFoundError, OSError) as error:
        why = printable(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        if isinstance(error, LocalTokenNotFoundError) or getattr(error, "response", None) is not None:
            raise ValueError(
                f"the Hub did not take it: {why}; log in with: hf auth login, or publish to a folder"
            ) from None
        raise ValueError(
            f"the Hub cannot be reached: {why}; publish to a folder, or do it where there is a network"
        ) from None
    return str(address), lines
