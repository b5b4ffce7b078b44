"""Exports the results for other tools: two tidy tables as CSV or Parquet, and Hugging Face's model-index for a model
card.

``rows`` has a line for each number of the leaderboard: a row's metric with its kind, interval and reason.
``replicates`` has a line for each piece of evidence of a row: a seed that learned, a set of processes that was timed,
the counts; what both sides cost and reached, failures included. Both name the records, whose JSON Lines remain the only
place of the raw samples.

Parquet keeps every text as it is. In CSV, which people open in spreadsheets, a text that a spreadsheet would take for a
formula gets an apostrophe in front (OWASP, "CSV Injection"): records hold messages and names from elsewhere. Numbers
are never changed, and what is unknown is empty, never 0.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from suite.entries.installed import baselines
from suite.judge.known import LearnedPair, TimedPair, counters_of
from suite.judge.metrics import COUNTERS, METRICS, Metric, MetricValue, metric_of, samples
from suite.judge.rows import EXACT, Row, as_dict
from suite.judge.statistics import Interval
from suite.record.schema import Counters, Memory
from suite.record.text import in_csv

Format = Literal["csv", "parquet", "model-index"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "model-index")
TABLES = ("rows", "replicates")

ColumnType = Literal["text", "integer", "real", "boolean"]
Line = dict[str, Any]


@dataclass(frozen=True)
class TidyTable:
    """Holds named columns with types; a line lacks what is unknown."""

    columns: Mapping[str, ColumnType]
    lines: Sequence[Line]


# tables -------------------------------------------------------------------------------------------------------------

IDENTITY: dict[str, ColumnType] = {
    "stack": "text",
    "reference": "text",
    "baseline": "text",
    "baseline_version": "integer",
    "size": "text",
    "recipe": "text",
    "task": "text",
    "steps": "integer",
    "data": "text",
    "data_sha256": "text",
    "model": "text",
    "device": "text",
    "threads": "integer",
    "machine": "text",
    "learned_on": "text",
    "unverified": "text",
    "newer_version": "integer",
}
VALUES: dict[str, ColumnType] = {
    "metric": "text",
    "evidence": "text",
    "scale": "text",
    "kind": "text",
    "at_most": "boolean",
    "value": "real",
    "low": "real",
    "high": "real",
    "level": "real",
    "n": "integer",
    "method": "text",
    "reference_value": "real",
    "contender_value": "real",
    "reason": "text",
    "note": "text",
    "seeds": "text",
    "failed_seeds": "text",
    "timings": "integer",
    "seeds_reaching_quality": "integer",
    "notes": "text",
    "newest": "text",
    "records": "text",
}
OF_TIMINGS: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.kind in ("timed", "measured"))
OF_SEEDS: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.kind in ("learned", "composed"))
REPLICATE: dict[str, ColumnType] = {
    "evidence": "text",
    "replicate": "integer",
    "records": "text",
    "status": "text",
    "failed_side": "text",
    "reason": "text",
    **{f"{metric.name}_ratio": "real" for metric in (*OF_SEEDS, *OF_TIMINGS)},
    "setup_reference_steps": "real",
}
RUN: dict[str, ColumnType] = {
    "steps": "integer",
    "setup_s": "real",
    "step_s": "real",
    "loss": "real",
    "cpu_s": "real",
    "energy_joules_per_step": "real",
    "energy_kind": "text",
    "energy_method": "text",
    "energy_reason": "text",
    **dict.fromkeys(Memory.model_fields, "integer"),
    **{metric.name: "integer" for metric in COUNTERS},
}
"""The columns of one run, for the reference and for the contender."""

SIDES = ("reference", "contender")
ENDS = ("low", "high", "level", "n", "method")


def row_values(rows: Iterable[Row]) -> TidyTable:
    """Builds a line for each number of each row. ``scale``: a ratio of costs, contender over reference, or the value
    itself.

    ``evidence`` is what the metric is read from. Of a ``kind`` bound the ratio is at least ``value``, or with
    ``at_most`` at most. ``seeds``, ``failed_seeds``, ``records`` and ``unverified``, the kinds of evidence whose code
    changed since, are separated by spaces. ``newer_version`` of the baseline: of a row of an older one.
    ``learned_on`` is the machine of the curves.
    """
    return TidyTable(IDENTITY | VALUES, [line for row in rows for line in _row_lines(row)])


def _row_lines(row: Row) -> Iterable[Line]:
    whole = as_dict(row)
    common = _identity(row) | {
        "seeds": _joined(row.seeds),
        "failed_seeds": _joined(sorted({failure.replicate for failure in row.failures if failure.kind == "learned"})),
        "timings": whole["timings"],
        "seeds_reaching_quality": whole["seeds_reaching_quality"],
        "notes": "; ".join(
            [*row.notes, *(f"{failure.kind} {failure.status}: {failure.reason}" for failure in row.failures)]
        ),
        "newest": row.newest,
        "records": _joined(row.records),
    }
    for name, value in whole["metrics"].items():
        metric, interval = metric_of(name), value["interval"] or {}
        yield common | {
            "metric": name,
            "evidence": metric.kind if metric else None,
            "scale": "ratio",
            "kind": value["kind"],
            "at_most": value["at_most"] if value["kind"] == "bound" else None,
            "value": value["ratio"],
            **{end: interval.get(end) for end in ENDS},
            "reference_value": value["reference"],
            "contender_value": value["contender"],
            "reason": value["reason"],
            "note": value["note"],
        }
    own = {"setup_reference_steps": ("timed", whole["setup_reference_steps"])}
    own |= {
        f"probe.{name}": ("counted" if row.probes[name].method == EXACT else "learned", interval)
        for name, interval in whole["probes"].items()
    }
    for name, (evidence, interval) in own.items():
        if interval:
            yield (
                common
                | {end: interval[end] for end in ENDS}
                | {
                    "metric": name,
                    "evidence": evidence,
                    "scale": "value",
                    "kind": "measured",
                    "value": interval["estimate"],
                }
            )


def replicates(rows: Iterable[Row]) -> TidyTable:
    """Builds a line for each piece of evidence; columns of the two sides begin with ``reference_`` and ``contender_``.

    ``replicate`` is the seed of what was learned, the number of what was timed. Probes, peaks by kind and further test
    metrics have a column where any line has them.
    """
    lines: list[Line] = []
    extra: dict[str, ColumnType] = {}
    for row in rows:
        ratios = samples(row.known, (*OF_SEEDS, *OF_TIMINGS))
        of_row = [_counted_line(row)] if all(row.known.counted) else []
        of_row += [_learned_line(run, ratios) for run in row.known.learned]
        of_row += [_timed_line(timing, ratios) for timing in row.known.timed]
        for line, types in of_row:
            lines.append(_identity(row) | {"status": "ok"} | line)
            extra |= types
        for failure in row.failures:
            lines.append(
                _identity(row)
                | {"evidence": failure.kind, "replicate": failure.replicate, "status": failure.status}
                | {"failed_side": failure.stack, "reason": failure.reason}
            )
    sides = {f"{side}_{name}": type for side in SIDES for name, type in RUN.items()}
    return TidyTable(IDENTITY | REPLICATE | sides | dict(sorted(extra.items())), lines)


Typed = tuple[Line, dict[str, ColumnType]]
"""A line, and the types of those of its columns that not every line has."""

Ratios = Mapping[str, Mapping[int, float]]


def _ratios(metrics: Iterable[Metric], ratios: Ratios, replicate: int) -> Line:
    of = {metric.name: ratios.get(metric.name, {}) for metric in metrics}
    return {f"{name}_ratio": math.exp(logs[replicate]) for name, logs in of.items() if replicate in logs}


def _counted_line(row: Row) -> Typed:
    line: Line = {"evidence": "counted", "records": _joined(counted.id for counted in row.known.counted if counted)}
    types: dict[str, ColumnType] = {}
    for name, counted in zip(SIDES, row.known.counted, strict=True):
        if counters := counters_of(counted):
            line |= {f"{name}_{key}": value for key, value in _counts(counters).items()}
            peaks = {f"{name}_peak.{kind}_bytes": count for kind, count in counters.peak_by_kind.items()}
            types |= dict.fromkeys(peaks, "integer")
            line |= peaks
    return line, types


def _counts(counters: Counters) -> Line:
    return {metric.name: getattr(counters, metric.name) for metric in COUNTERS}


def _learned_line(pair: LearnedPair, ratios: Ratios) -> Typed:
    line: Line = {
        "evidence": "learned",
        "replicate": pair.seed,
        "records": _joined(side.id for side in pair.sides),
    } | _ratios(OF_SEEDS, ratios, pair.seed)
    types: dict[str, ColumnType] = {}
    for name, side in zip(SIDES, pair.sides, strict=True):
        final = side.final
        line |= {
            f"{name}_steps": side.steps,
            f"{name}_cpu_s": side.cpu_s,
            f"{name}_loss": final.loss if final else None,
        }
        reals = {f"{name}_probe.{key}": value for key, value in side.probes.items()}
        reals |= {f"{name}_final.{key}": value for key, value in (final.metrics if final else {}).items()}
        types |= dict.fromkeys(reals, "real")
        line |= reals
    return line, types


def _timed_line(pair: TimedPair, ratios: Ratios) -> Typed:
    line: Line = {
        "evidence": "timed",
        "replicate": pair.replicate,
        "records": pair.record,
        "setup_reference_steps": pair.setup_cost,
    } | _ratios(OF_TIMINGS, ratios, pair.replicate)
    paces_s = pair.reference_step_s, pair.reference_step_s * line["step_time_ratio"]
    for name, side, step_s in zip(SIDES, pair.sides, paces_s, strict=True):
        own = {
            "steps": side.steps,
            "setup_s": side.setup_s,
            "step_s": step_s,
            "cpu_s": side.cpu_s,
            "energy_joules_per_step": side.energy.joules_per_step,
            "energy_kind": side.energy.kind,
            "energy_method": side.energy.method,
            "energy_reason": side.energy.reason,
            **side.memory.model_dump(),
        }
        line |= {f"{name}_{key}": value for key, value in own.items()}
    return line, {}


def _identity(row: Row) -> Line:
    own = {
        "stack": row.stack,
        "reference": row.reference,
        "machine": row.machine.name,
        "learned_on": row.learned_on,
        "unverified": _joined(row.unverified),
        "newer_version": row.newer_version,
    }
    return {name: own[name] if name in own else getattr(row.conditions, name) for name in IDENTITY}


def _joined(values: Iterable[Any]) -> str:
    return " ".join(map(str, values))


def exported(rows: Sequence[Row], form: Format, name: str = "rows", existing: str = "") -> bytes:
    """Returns the content of a file: a table of TABLES, or a model card that ``existing`` becomes."""
    if form == "model-index":
        return model_card(rows, existing).encode()
    chosen = row_values(rows) if name == "rows" else replicates(rows)
    return as_parquet(chosen) if form == "parquet" else as_csv(chosen).encode()


# formats ------------------------------------------------------------------------------------------------------------


def as_csv(table: TidyTable) -> str:
    """Write CSV after RFC 4180. With line ends of two characters the writer quotes texts that hold either of them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(map(in_csv, table.columns))
    for line in table.lines:
        writer.writerow([_cell(line.get(name)) for name in table.columns])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return in_csv(value) if isinstance(value, str) else value


def as_parquet(table: TidyTable) -> bytes:
    """Writes one row group. Raises ValueError, with the way out, where pyarrow is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'leantrain[parquet]'") from None
    types = {"text": pa.string(), "integer": pa.int64(), "real": pa.float64(), "boolean": pa.bool_()}
    schema = pa.schema([(name, types[type]) for name, type in table.columns.items()])
    whole = [{name: line.get(name) for name in table.columns} for line in table.lines]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(whole, schema=schema), sink)
    return sink.getvalue()


# model cards --------------------------------------------------------------------------------------------------------


def model_card(rows: Sequence[Row], existing: str = "") -> str:
    """Returns ``existing``, a Hugging Face model card, with these rows as its evaluation results; the rest of it is
    kept.

    The rows must be of one stack on one baseline: a card is about one model. Final test scores are given as such,
    everything else as the ratio that it is, with interval, reference, machines, seeds and records in its ``args``. What
    is unknown or a bound has no entry: the format has no word for it. ``verified`` is Hugging Face's to say, and never
    said here.

    Raises ValueError, with what to choose, for rows of several models.
    """
    from huggingface_hub import ModelCard, ModelCardData

    models = sorted({f"{row.stack} on {row.conditions.baseline}" for row in rows})
    if len(models) != 1:
        raise ValueError(f"a model card is about one model: choose with -t and -b among {', '.join(models)}")
    card = ModelCard(existing or "---\n{}\n---\n")
    assert isinstance(card.data, ModelCardData)
    ours = [result for row in rows for result in _results(row)]
    others = [
        result for result in card.data.eval_results or [] if (result.metric_args or {}).get("suite") != "leantrain"
    ]
    card.data.eval_results = [*others, *ours]
    card.data.model_name = card.data.model_name or models[0]
    return str(card)


def _results(row: Row) -> Iterable[Any]:
    from huggingface_hub import EvalResult

    at = row.conditions
    baseline = baselines().get(at.baseline)
    condition = f"{at.size} {at.recipe} {at.task}, {at.steps} reference steps on {row.machine.name}"
    for name, value in row.metrics.items():
        if not value.known:
            continue
        short = name.removeprefix("final.")
        entries = [(f"{short}_ratio", value.number, f"{short}, {row.stack} over {row.reference}", value.interval)]
        if value.contender is not None and (name == "loss" or name != short):
            what = baseline.quality if baseline and name == "loss" else short
            entries.append((short, value.contender, f"test {what}", None))
        for kind, number, title, interval in entries:
            yield EvalResult(
                task_type=baseline.hub_task if baseline else "other",
                task_name=f"{at.task}: {baseline.quality}" if baseline else at.task,
                dataset_type=at.data,
                dataset_name=at.data,
                dataset_split="test",
                dataset_args={"sha256": at.data_sha256},
                metric_type=kind,
                metric_value=float(number),
                metric_name=title,
                metric_config=condition,
                metric_args=_args(row, value, interval),
            )


def _args(row: Row, value: MetricValue, interval: Interval | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "suite": "leantrain",
        "kind": value.kind,
        "reference": str(row.reference),
        "seeds": list(row.seeds),
        "timings": len(row.known.timed),
        "machine": row.machine.name,
        "learned_on": row.learned_on,
        "records": list(row.records),
    }
    if interval and math.isfinite(interval.high):
        arguments |= {"low": float(interval.low), "high": float(interval.high)}
        arguments |= {"level": float(interval.level), "method": interval.method}
    if value.note:
        arguments["note"] = value.note
    if row.unverified:
        arguments["unverified"] = list(row.unverified)
    if row.newer_version:
        arguments |= {"version": row.conditions.baseline_version, "newer_version": row.newer_version}
    return arguments
