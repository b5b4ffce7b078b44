"""The results for other tools: two tidy tables as CSV or Parquet, and Hugging Face's model-index for a model card.

``rows`` has a line for each number of the leaderboard: a row's metric with its kind, interval and reason.
``replicates`` has a line for each seed: what both sides cost and reached, failures included. Both name the records,
whose JSON Lines remain the only place of the raw samples.

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

from suite.contract.baseline import baselines
from suite.judge.metrics import COUNTERS, METRICS, Metric, Value
from suite.judge.replicate import Replicate
from suite.judge.rows import Row, as_dict
from suite.judge.statistics import Interval
from suite.record.schema import Memory, Outcome

Format = Literal["csv", "parquet", "model-index"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "model-index")
TABLES = ("rows", "replicates")

ColumnType = Literal["text", "integer", "real"]
Line = dict[str, Any]

FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")  # OWASP's list; the wide forms count in some locales


@dataclass(frozen=True)
class TidyTable:
    """Named columns with types; a line lacks what is unknown."""

    columns: Mapping[str, ColumnType]
    lines: Sequence[Line]


# tables -------------------------------------------------------------------------------------------------------------

IDENTITY: dict[str, ColumnType] = {
    "stack": "text", "reference": "text", "baseline": "text", "baseline_version": "integer", "size": "text",
    "recipe": "text", "task": "text", "steps": "integer", "data": "text", "data_sha256": "text", "model": "text",
    "device": "text", "threads": "integer", "machine": "text", "pairing": "text", "stale": "text",
}  # fmt: skip
VALUES: dict[str, ColumnType] = {
    "metric": "text", "scale": "text", "kind": "text", "value": "real", "low": "real", "high": "real", "level": "real",
    "n": "integer", "method": "text", "reference_value": "real", "contender_value": "real", "reason": "text",
    "note": "text", "seeds": "text", "failed_seeds": "text", "seeds_reaching_quality": "integer", "notes": "text",
    "newest": "text", "records": "text",
}  # fmt: skip
BY_SEED: tuple[Metric, ...] = tuple(each for each in METRICS.values() if each.round_samples)
SEED: dict[str, ColumnType] = {
    "seed": "integer", "record": "text", "status": "text", "failed_side": "text", "reason": "text",
    **{f"{metric.name}_ratio": "real" for metric in BY_SEED}, "setup_reference_steps": "real",
}  # fmt: skip
RUN: dict[str, ColumnType] = {
    "steps": "integer", "setup_s": "real", "step_s": "real", "loss": "real", "equal_time_steps": "integer",
    "equal_time_loss": "real", "cpu_s": "real", "energy_joules_per_step": "real", "energy_kind": "text",
    "energy_method": "text", "energy_reason": "text", **dict.fromkeys(Memory.model_fields, "integer"),
    **{metric.name: "integer" for metric in COUNTERS},
}  # fmt: skip
"""The columns of one run, for the reference and for the contender."""


def row_values(rows: Iterable[Row]) -> TidyTable:
    """A line for each number of each row. ``scale``: a ratio of costs, contender over reference, or the value itself.

    ``seeds``, ``failed_seeds`` and ``records`` are separated by spaces; ``stale`` says what changed since, and is empty
    for what is current.
    """
    return TidyTable(IDENTITY | VALUES, [line for row in rows for line in _row_lines(row)])


def _row_lines(row: Row) -> Iterable[Line]:
    whole = as_dict(row)
    common = {
        "seeds": _joined(row.seeds),
        "failed_seeds": _joined(failure.seed for failure in row.failures),
        "seeds_reaching_quality": row.reached,
        "notes": "; ".join([*row.notes, *(f"seed {each.seed}: {each.reason}" for each in row.failures)]),
        "newest": row.newest,
        "records": _joined(row.records),
    }
    for name, value in whole["metrics"].items():
        interval = value["interval"] or {}
        yield _identity(row) | common | {
            "metric": name,
            "scale": "ratio",
            "kind": value["kind"],
            "value": value["ratio"],
            **{each: interval.get(each) for each in ("low", "high", "level", "n", "method")},
            "reference_value": value["reference"],
            "contender_value": value["contender"],
            "reason": value["reason"],
            "note": value["note"],
        }  # fmt: skip
    own = {"setup_reference_steps": whole["setup_reference_steps"]}
    own |= {f"probe.{name}": interval for name, interval in whole["probes"].items()}
    for name, interval in own.items():
        if interval:
            bounds = {each: interval[each] for each in ("low", "high", "level", "n", "method")}
            yield _identity(row) | common | bounds | {
                "metric": name, "scale": "value", "kind": "measured", "value": interval["estimate"],
            }  # fmt: skip


def replicates(rows: Iterable[Row]) -> TidyTable:
    """A line for each seed of each row; columns of the two sides begin with ``reference_`` and ``contender_``.

    Probes, peaks by kind and further test metrics have a column where any line has them.
    """
    lines: list[Line] = []
    extra: dict[str, ColumnType] = {}
    for row in rows:
        known = {each.seed: each for each in row.replicates}
        failed = {each.seed: each for each in row.failures}
        for seed, record in zip(sorted(known | failed), row.records, strict=True):
            line = _identity(row) | {"seed": seed, "record": record}
            if seed in known:
                more, types = _replicate_line(known[seed])
                line |= more
                extra |= types
            else:
                failure = failed[seed]
                line |= {"status": failure.status, "failed_side": failure.stack, "reason": failure.reason}
            lines.append(line)
    sides = {f"{side}_{name}": type for side in ("reference", "contender") for name, type in RUN.items()}
    return TidyTable(IDENTITY | SEED | sides | dict(sorted(extra.items())), lines)


def _replicate_line(each: Replicate) -> tuple[Line, dict[str, ColumnType]]:
    """The line, and the types of the columns that not every line has."""
    line: Line = {
        "status": "ok",
        **{f"{metric.name}_ratio": math.exp(metric.log_cost_ratio(each)) for metric in BY_SEED},
        "setup_reference_steps": each.setup_cost,
    }
    types: dict[str, ColumnType] = {}
    step_s = {"reference": each.reference_step_s, "contender": each.reference_step_s * line["step_time_ratio"]}
    for name, side in (("reference", each.reference), ("contender", each.contender)):
        line |= {f"{name}_{key}": value for key, value in _run(side, step_s[name]).items()}
        if side.counters:
            peaks = {f"{name}_peak.{kind}_bytes": count for kind, count in side.counters.peak_by_kind.items()}
            types |= dict.fromkeys(peaks, "integer")
            line |= peaks
        reals = {f"{name}_probe.{key}": value for key, value in side.probes.items()}
        if side.curve:
            reals |= {f"{name}_final.{key}": value for key, value in side.curve[-1].metrics.items()}
        types |= dict.fromkeys(reals, "real")
        line |= reals
    return line, types


def _run(side: Outcome, step_s: float) -> Line:
    equal, energy = side.equal_time, side.energy
    return {
        "steps": side.steps,
        "setup_s": side.setup_s,
        "step_s": step_s,
        "loss": side.curve[-1].loss if side.curve else None,
        "equal_time_steps": equal.steps if equal else None,
        "equal_time_loss": equal.loss if equal else None,
        "cpu_s": side.cpu_s,
        "energy_joules_per_step": energy.joules_per_step,
        "energy_kind": energy.kind,
        "energy_method": energy.method,
        "energy_reason": energy.reason,
        **side.memory.model_dump(),
        **{metric.name: metric.quantity(side) if metric.quantity else None for metric in COUNTERS},
    }


def _identity(row: Row) -> Line:
    own = {
        "stack": row.stack, "reference": row.reference, "machine": row.machine.name, "pairing": row.pairing,
        "stale": "; ".join(row.stale),
    }  # fmt: skip
    return {name: own[name] if name in own else getattr(row.conditions, name) for name in IDENTITY}


def _joined(values: Iterable[Any]) -> str:
    return " ".join(map(str, values))


def exported(rows: Sequence[Row], form: Format, name: str = "rows", existing: str = "") -> bytes:
    """The content of a file: a table of TABLES, or a model card that ``existing`` becomes."""
    if form == "model-index":
        return model_card(rows, existing).encode()
    chosen = row_values(rows) if name == "rows" else replicates(rows)
    return as_parquet(chosen) if form == "parquet" else as_csv(chosen).encode()


# formats ------------------------------------------------------------------------------------------------------------


def as_csv(table: TidyTable) -> str:
    """Write CSV after RFC 4180. With line ends of two characters the writer quotes texts that hold either of them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(map(harmless, table.columns))
    for line in table.lines:
        writer.writerow([_cell(line.get(name)) for name in table.columns])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) else value


def harmless(text: str) -> str:
    """``text``, with an apostrophe in front where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def as_parquet(table: TidyTable) -> bytes:
    """One row group. Raises ValueError, with the way out, where pyarrow is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'leantrain[parquet]'; or choose --format csv") from None
    types = {"text": pa.string(), "integer": pa.int64(), "real": pa.float64()}
    schema = pa.schema([(name, types[type]) for name, type in table.columns.items()])
    whole = [{name: line.get(name) for name in table.columns} for line in table.lines]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(whole, schema=schema), sink)
    return sink.getvalue()


# model cards --------------------------------------------------------------------------------------------------------


def model_card(rows: Sequence[Row], existing: str = "") -> str:
    """``existing``, a Hugging Face model card, with these rows as its evaluation results; the rest of it is kept.

    The rows must be of one stack on one baseline: a card is about one model. Final test scores are given as such,
    everything else as the ratio that it is, with interval, reference, machine, seeds and records in its ``args``. What
    is unknown has no entry: the format has no word for it. ``verified`` is Hugging Face's to say, and never said here.

    Raises ValueError, with what to choose, for rows of several models.
    """
    from huggingface_hub import ModelCard, ModelCardData

    models = sorted({f"{row.stack} on {row.conditions.baseline}" for row in rows})
    if len(models) != 1:
        raise ValueError(f"a model card is about one model: choose with -t and -b among {', '.join(models)}")
    card = ModelCard(existing or "---\n{}\n---\n")
    assert isinstance(card.data, ModelCardData)
    ours = [result for row in rows for result in _results(row)]
    others = [each for each in card.data.eval_results or [] if (each.metric_args or {}).get("suite") != "leantrain"]
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


def _args(row: Row, value: Value, interval: Interval | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "suite": "leantrain", "kind": value.kind, "reference": row.reference, "seeds": list(row.seeds),
        "machine": row.machine.name, "records": list(row.records),
    }  # fmt: skip
    if interval and math.isfinite(interval.high):  # one seed may not bound it
        arguments |= {"low": float(interval.low), "high": float(interval.high)}
        arguments |= {"level": float(interval.level), "method": interval.method}
    if value.note:
        arguments["note"] = value.note
    if row.stale:
        arguments["stale"] = list(row.stale)
    return arguments
