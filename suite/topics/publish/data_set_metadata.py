"""Describes a published data set to other tools: Croissant, RO-Crate, CodeMeta, and the Hub's ``eval.yaml``.

Croissant (MLCommons, 1.1) says which files there are, by hash, and what each column of each table is, so that a loader
needs nothing else. RO-Crate (1.1) lists every file of the folder, for archives such as Zenodo. CodeMeta (3.0) says
which software measured it. ``eval.yaml`` names what a model may be measured at, one task for each metric under
equal conditions: what ``leaderboard --format eval-results`` writes refers to them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import metadata
from typing import Any

from suite.judge.metrics import METRICS, Metric
from suite.record.schema import Conditions, Line, Renewal
from suite.topics.publish.export import ColumnType

DATA_TYPES: Mapping[ColumnType, str] = {
    "text": "sc:Text",
    "integer": "sc:Integer",
    "real": "sc:Float",
    "boolean": "sc:Boolean",
}
TERMS = (
    "arrayShape",
    "citeAs",
    "column",
    "containedIn",
    "equivalentProperty",
    "extract",
    "field",
    "fileProperty",
    "fileObject",
    "fileSet",
    "format",
    "includes",
    "isArray",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
)
CROISSANT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
} | {term: f"cr:{term}" for term in TERMS}
"""The vocabulary of Croissant 1.1, as its specification has it."""
LICENCE = "https://spdx.org/licenses/Apache-2.0"
WHAT = (
    "Measurements of what published techniques for training Transformers cost and bring, against fixed BERT, GPT, ViT "
    "and MAE baselines: exact counts, learning curves, paired timings. Every row has the whole record."
)
FORMATS = {
    "json": "application/json",
    "md": "text/markdown",
    "parquet": "application/x-parquet",
    "yaml": "application/yaml",
}
"""The type of a file by its suffix."""
Tables = Mapping[str, tuple[str, Mapping[str, tuple[ColumnType, str]]]]
"""Name of a table -> what it is, and its columns with their types and meanings."""


def croissant(name: str, files: Mapping[str, bytes], tables: Tables, lines: Sequence[Line]) -> bytes:
    """Writes the Croissant description of the tables among ``files``, ``data/NAME.parquet``; at the Hub under ``name``.

    ``lines``: the records, whose newest is the date of publication and whose sources are the creators.
    """
    address = f"https://huggingface.co/datasets/{name}" if "/" in name else "."
    newest = max(lines, key=lambda line: line.started).started[:10]
    whole = {
        "@context": CROISSANT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": WHAT,
        "url": address,
        "license": LICENCE,
        "version": "1.0.0",
        "datePublished": newest,
        "creator": [{"@type": "sc:Organization", "name": each} for each in sorted({line.source for line in lines})],
        "citeAs": f"Records of leantrain: {name}, {newest}.",
        "keywords": ["Transformers", "efficient training", "benchmark"],
        "distribution": [_file(path, content) for path, content in files.items() if path.endswith(".parquet")],
        "recordSet": [_record_set(each, *tables[each]) for each in tables if f"data/{each}.parquet" in files],
    }
    return as_json(whole)


def _file(path: str, content: bytes) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path.rpartition("/")[2],
        "contentUrl": path,
        "contentSize": f"{len(content)} B",
        "encodingFormat": "application/x-parquet",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _record_set(table: str, what: str, columns: Mapping[str, tuple[ColumnType, str]]) -> dict[str, Any]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{table}/{name}",
            "name": name,
            "description": meaning,
            "dataType": DATA_TYPES[type],
            "source": {"fileObject": {"@id": f"data/{table}.parquet"}, "extract": {"column": name}},
        }
        for name, (type, meaning) in columns.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "description": what,
        "key": {"@id": f"{table}/id"},
        "field": fields,
    }


def codemeta() -> bytes:
    """Writes what software measured, from the metadata of the installed package."""
    known = metadata("leantrain")
    needed = [
        {"@type": "SoftwareSourceCode", "name": re.split(r"[<>=!~ ;\[]", line)[0]}
        for line in known.get_all("Requires-Dist") or ()
        if "extra ==" not in line
    ]
    return as_json(
        {
            "@context": "https://w3id.org/codemeta/3.0",
            "@type": "SoftwareSourceCode",
            "name": known["Name"],
            "version": known["Version"],
            "description": known["Summary"],
            "license": LICENCE,
            "programmingLanguage": {"@type": "ComputerLanguage", "name": "Python"},
            "runtimePlatform": f"Python {known['Requires-Python']}",
            "keywords": (known["Keywords"] or "").split(","),
            "softwareRequirements": needed,
        }
    )


def ro_crate(name: str, files: Mapping[str, bytes], lines: Sequence[Line]) -> bytes:
    """Writes the RO-Crate description of all ``files``, by their paths; arguments as :func:`croissant` has them."""
    known = metadata("leantrain")
    newest = max(lines, key=lambda line: line.started).started[:10]
    authors = [
        {"@id": f"#source-{at}", "@type": "Organization", "name": source}
        for at, source in enumerate(sorted({line.source for line in lines}))
    ]
    by = [{"@id": each["@id"]} for each in authors]
    about = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": name,
        "description": WHAT,
        "datePublished": newest,
        "license": {"@id": LICENCE},
        "author": by[0] if len(by) == 1 else by,
        "hasPart": [{"@id": path} for path in files],
        "mentions": {"@id": "#leantrain"},
    }
    parts = [
        {
            "@id": path,
            "@type": "File",
            "name": path.rpartition("/")[2],
            "contentSize": str(len(content)),
            "sha256": hashlib.sha256(content).hexdigest(),
            "encodingFormat": FORMATS[path.rpartition(".")[2]],
        }
        for path, content in files.items()
    ]
    licence = {"@id": LICENCE, "@type": "CreativeWork", "name": "Apache License 2.0", "url": LICENCE}
    software = {"@id": "#leantrain", "@type": "SoftwareApplication", "name": known["Name"], "version": known["Version"]}
    described = [about, root, *parts, licence, software, *authors]
    return as_json({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": described})


def as_json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


# a benchmark ----------------------------------------------------------------------------------------------------------

TABLE_OF = {"counted": "counted", "learned": "learned", "composed": "learned", "timed": "timed", "measured": "timed"}
"""The table that a kind of metric is read from."""


def benchmarked() -> Iterator[Metric]:
    """Yields the metrics of which a benchmark has tasks: those of the board that have a better end."""
    yield from (metric for metric in METRICS.values() if metric.uses.column and metric.direction != "none")


def task_of(at: Conditions, metric: str) -> str:
    """Names the task of a metric under these conditions, and under no others."""
    return f"{at.baseline}-{at.size}-{at.recipe}-{at.task}-{at.key[:6]}-{metric}"


def benchmark(name: str, lines: Iterable[Line]) -> bytes:
    """Writes the ``eval.yaml`` by which the Hub knows the data set as a benchmark."""
    import yaml

    seen: dict[tuple[str, str], Conditions] = {}
    for line in lines:
        if not isinstance(line, Renewal):
            seen.setdefault((line.kind, line.conditions.key), line.conditions)
    tasks = {
        task_of(at, metric.name): {"id": task_of(at, metric.name), "config": kind, "split": "train"}
        for (kind, _), at in seen.items()
        for metric in benchmarked()
        if TABLE_OF[metric.kind] == kind
    }
    whole = {
        "name": name,
        "description": WHAT + " A task's value is a saving over the reference, above 1 where it is one.",
        "evaluation_framework": "leantrain",
        "tasks": [tasks[id] for id in sorted(tasks)],
    }
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120).encode()
