"""Guesses which column of a log is what, by the names that programs give them; a user's own names come first.

Nothing is guessed silently: :attr:`Roles.said` tells which column was taken for what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from suite.topics.foreign_runs.log_table import LogTable

Better = Literal["lower", "higher"]
UNITS = ("tokens", "steps", "flops", "seconds")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_PARTS = _names("val, eval, valid, validation, test, dev")
_HELD_OUT_OF_OTHERS = "validation_metrics/global_avg_loss, metrics/eval/languagecrossentropy, metrics/eval/crossentropy"
HELD_OUT = (
    *(f"{part}{join}{what}" for what in ("loss", "bpb") for part in _PARTS for join in "_/"),
    *_names(_HELD_OUT_OF_OTHERS),
    *(f"{part}{join}{what}" for what in _names("perplexity, ppl, accuracy, acc") for part in _PARTS for join in "_/"),
    *_names("bpb, perplexity"),
)
IN_TRAINING = _names("loss, train_loss, train/loss, training_loss, loss_metrics/global_avg_loss, loss/train/total")
KNOWN: dict[str, tuple[str, ...]] = {
    "step": _names(
        "step, steps, _step, global_step, train/global_step, trainer/global_step, iteration, iter, iterations, update, "
        "updates, time/batch"
    ),
    "tokens": _names(
        "tokens, total_tokens, num_tokens, n_tokens, tokens_seen, n_tokens_seen, ntokens_seen, consumed_tokens, "
        "num_input_tokens_seen, train/num_input_tokens_seen, train/tokens, time/token"
    ),
    "flops": _names("flops, total_flops, total_flos, train/total_flos, total_training_flops"),
    "seconds": _names(
        "seconds, _runtime, elapsed, elapsed_s, elapsed_seconds, time_s, train_time_s, wall_time, wall_clock, runtime, "
        "wall_clock_s, total_training_time, train_time_ms, elapsed_ms, relative time (process), "
        "time_seconds/train, time_minutes/train, time_hours/train"
    ),
    "seed": _names("seed, random_seed, rng_seed"),
    "run": _names("run, run_id, run_name, experiment"),
}
HIGHER = _names("accuracy, acc, f1, bleu, rouge, auc, recall, precision, em")
LOWER = _names("loss, bpb, bpc, nll, perplexity, ppl, crossentropy, entropy, error, err, wer, mse, rmse, fid")
SECONDS_IN = {"_ms": 1e-3, "_minutes/train": 60.0, "_hours/train": 3600.0}
"""How a column's name ends that is not in seconds, and what one of its units has."""


@dataclass(frozen=True)
class ColumnNames:
    """Holds the columns that a user names, each option perhaps several times: the first that a file has is taken."""

    step: tuple[str, ...] = ()
    loss: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    flops: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roles:
    """Holds what was decided of all logs of a comparison together.

    ``of`` [role]: the names to look for, in order. ``unit``: what budgets are counted in. ``metric``: the loss's name.
    """

    of: Mapping[str, Sequence[str]]
    unit: str
    metric: str
    held_out: bool
    said: list[str] = field(default_factory=list)

    def column(self, role: str, table: LogTable) -> str | None:
        """Returns the column of a table that has a role."""
        return column_of(table, self.of[role])


def column_of(table: LogTable, names: Sequence[str]) -> str | None:
    """Returns the first of these names that a table has with anything in it, in upper or lower case."""
    own = {name.lower(): name for name in reversed(list(table.columns))}
    found = (own[name.lower()] for name in names if name.lower() in own)
    return next((name for name in found if table.says(name)), None)


def decided(tables: Sequence[LogTable], named: ColumnNames, unit: str = "") -> Roles:
    """Decides which column is what. Raises ValueError, with the columns that there are, where one is missing."""
    of: dict[str, Sequence[str]] = {}
    for role in (each.name for each in fields(ColumnNames)):
        own = getattr(named, role)
        for table in tables if own and role not in ("seed", "run") else ():
            if column_of(table, own) is None:
                raise ValueError(f"--{role} {own[0]}: {_columns(table)}")
        of[role] = own or KNOWN.get(role, ())
    if not named.loss:
        of["loss"] = (_metric(tables),)
    held_out = bool(named.loss) or of["loss"][0] in HELD_OUT
    unit = _unit(tables, of, unit)
    roles = Roles(of, unit, column_of(tables[0], of["loss"]) or "", held_out)
    for role in ("step", "tokens", "flops", "seconds", "seed", "run", "loss"):
        found = {name: None for table in tables if (name := column_of(table, of[role]))}
        if found and not getattr(named, role):
            roles.said.append(f"{role}: {', '.join(found)}")
    return roles


def _metric(tables: Sequence[LogTable]) -> str:
    for name in (*HELD_OUT, *IN_TRAINING):
        if all(column_of(table, [name]) for table in tables):
            return name
    without = next(
        (table for table in tables if not any(column_of(table, [name]) for name in (*HELD_OUT, *IN_TRAINING))), None
    )
    if without:
        raise ValueError(f"no column is known to be a loss: {_columns(without)}; name it with --loss")
    raise ValueError(
        f"no loss is in every log: {_columns(tables[0])}, {_columns(tables[-1])}; name the same quantity of each with "
        "--loss, once for each name"
    )


def _unit(tables: Sequence[LogTable], of: Mapping[str, Sequence[str]], wanted: str) -> str:
    """Returns what budgets are counted in: as wanted, else the first unit but time that all logs have."""
    for unit in (wanted,) if wanted else ("tokens", "steps", "flops"):
        if all(column_of(table, of[role_of(unit)]) for table in tables):
            return unit
    role = role_of(wanted or "steps")
    without = next(table for table in tables if column_of(table, of[role]) is None)
    raise ValueError(f"no column is known to hold {wanted or 'steps'}: {_columns(without)}; name it with --{role}")


def role_of(unit: str) -> str:
    return {"steps": "step"}.get(unit, unit)


def _columns(table: LogTable) -> str:
    names = [name for name in table.columns if not name.startswith("lines of")]
    return f"{table.source} has {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"


def direction(metric: str) -> Better | None:
    """Tells by a metric's name whether lower or higher is better; None where it does not say."""
    words = metric.lower().replace("/", "_").replace("-", "_").replace(" ", "_").split("_")
    if any(word in LOWER or word.endswith(("loss", "crossentropy")) for word in words):
        return "lower"
    return "higher" if any(word in HIGHER for word in words) else None
