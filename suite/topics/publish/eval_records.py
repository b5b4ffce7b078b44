"""Writes rows as evaluation results in two formats that others read: Hugging Face's ``.eval_results`` and Every Eval
Ever.

Both are about one model, so the rows are of one stack on one baseline. ``.eval_results/NAME.yaml`` lies in the model's
repository and refers to tasks of a benchmark, a data set that ``leantrain publish`` wrote with its ``eval.yaml``; the
Hub ranks the larger value first, so a value is the saving, reference over contender. Every Eval Ever (schema 0.3) is
one JSON document for all benchmarks: cost ratios, contender over reference, with their intervals. What is unknown, or a
bound, has no entry: neither format has a word for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from suite.judge.metrics import Metric, MetricValue
from suite.judge.rows import Row
from suite.topics.publish.data_set_metadata import as_json, benchmarked, task_of

SCHEMA_OF_EVERY_EVAL_EVER = "0.3.0"
FORMATS = ("eval-results", "every-eval-ever")


def results(rows: Sequence[Row], form: str, benchmark: str) -> bytes:
    """Returns the rows in one of FORMATS; ``benchmark`` is the Hub's, for eval-results. Raises ValueError."""
    return eval_results(rows, benchmark).encode() if form == "eval-results" else every_eval_ever(rows)


def model_of(rows: Iterable[Row]) -> str:
    """Returns the model that the rows are of. Raises ValueError, with what to choose, for rows of several."""
    models = sorted({f"{row.stack} on {row.conditions.baseline}" for row in rows})
    if len(models) != 1:
        raise ValueError(f"these results are about one model: choose with -t and -b among {', '.join(models)}")
    return models[0]


def eval_results(rows: Sequence[Row], benchmark: str) -> str:
    """Writes ``.eval_results`` for the Hub's ``benchmark``, ``OWNER/NAME``. Raises ValueError, with the way out."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    model_of(rows)
    owner, _, name = benchmark.partition("/")
    if not owner or not name or "/" in name:
        raise ValueError(
            "eval-results refer to a data set of the Hub: name it, --benchmark OWNER/NAME; leantrain publish --to "
            "hf://datasets/OWNER/NAME makes it"
        )
    source = f"https://huggingface.co/datasets/{benchmark}"
    entries = [
        EvalResultEntry(
            dataset_id=benchmark,
            task_id=task_of(row.conditions, metric.name),
            value=1 / value.number,
            date=row.newest[:10],
            source_url=source,
            source_name="leantrain's records",
            notes=_notes(row, metric, value),
        )
        for row in rows
        for metric, value in _known(row)
        if value.number
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True, width=120)


def _known(row: Row) -> Iterator[tuple[Metric, MetricValue]]:
    """Yields the metrics of a benchmark that the row knows."""
    for metric in benchmarked():
        value = row.metrics.get(metric.name)
        if value is not None and value.known and math.isfinite(value.number):
            yield metric, value


def _notes(row: Row, metric: Metric, value: MetricValue) -> str:
    saved = value.speedup
    interval = f" [{saved.low:.4g}, {saved.high:.4g}]" if saved and math.isfinite(saved.high) else ""
    parts = [f"{metric.title}: {row.reference} over {row.stack}, above 1 is better{interval}", value.kind]
    parts += [f"on {row.machine.name}", f"{len(row.seeds)} seeds, {len(row.known.timed)} timings"]
    return "; ".join([*parts, *_reservations(row)])


def _reservations(row: Row) -> list[str]:
    unverified = [f"unverified, by changed code: {' '.join(row.unverified)}"] if row.unverified else []
    older = [f"baseline version {row.conditions.baseline_version} of {row.newer_version}"] if row.newer_version else []
    return [*unverified, *older]


def every_eval_ever(rows: Sequence[Row], now: datetime | None = None) -> bytes:
    """Writes the rows as one log of Every Eval Ever, retrieved ``now``. Raises ValueError for several models."""
    model = model_of(rows)
    retrieved = str(round((now or datetime.now(UTC)).timestamp()))
    row = rows[0]
    id = f"leantrain/{row.conditions.baseline}-{row.stack}"
    return as_json(
        {
            "schema_version": SCHEMA_OF_EVERY_EVAL_EVER,
            "evaluation_id": f"leantrain/{id}/{retrieved}",
            "evaluation_timestamp": max(each.newest for each in rows),
            "retrieved_timestamp": retrieved,
            "source_metadata": {
                "source_name": "leantrain",
                "source_type": "evaluation_run",
                "source_organization_name": "not stated",
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "leantrain", "version": version("leantrain")},
            "model_info": {
                "name": model,
                "id": id,
                "additional_details": {
                    "deployment_type": "self_deployed",
                    "model_availability": "unknown",
                    "stack": row.stack,
                    "baseline": row.conditions.baseline,
                },
            },
            "evaluation_results": [_result(each, *known) for each in rows for known in _known(each)],
        }
    )


def _result(row: Row, metric: Metric, value: MetricValue) -> dict[str, Any]:
    at, interval = row.conditions, value.interval
    score: dict[str, Any] = {"score": value.number, "details": _details(row, value)}
    if interval and math.isfinite(interval.high):
        bounds = {"lower": interval.low, "upper": interval.high, "confidence_level": interval.level}
        score["uncertainty"] = {
            "confidence_interval": bounds | {"method": interval.method},
            "num_samples": interval.n,
        }
    return {
        "evaluation_name": task_of(at, metric.name),
        "source_data": {
            "dataset_name": at.data or f"{at.baseline}'s own",
            "source_type": "other",
            "additional_details": {"sha256": at.data_sha256, "task": at.task},
        },
        "evaluation_timestamp": row.newest,
        "metric_config": {
            "evaluation_description": f"{metric.title}: ratio of costs, {row.stack} over {row.reference}; 1 is equal",
            "lower_is_better": True,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": "Infinity",
            "additional_details": {"evidence": metric.kind, "unit_of_the_quantities": metric.unit},
        },
        "score_details": score,
    }


def _details(row: Row, value: MetricValue) -> dict[str, str]:
    """Returns where a number is from; the format takes texts alone."""
    at = row.conditions
    known = {
        "kind": value.kind,
        "reference": row.reference,
        "reference_value": value.reference,
        "contender_value": value.contender,
        "size": at.size,
        "recipe": at.recipe,
        "reference_steps": at.steps,
        "baseline_version": at.baseline_version,
        "machine": row.machine.name,
        "learned_on": row.learned_on,
        "seeds": " ".join(map(str, row.seeds)),
        "timings": len(row.known.timed),
        "records": " ".join(row.records),
        "note": value.note,
        "reservations": "; ".join(_reservations(row)),
    }
    return {name: str(text) for name, text in known.items() if text not in (None, "")}
