"""Reads text logs by regular expressions with named groups, each line's fields; presets are of programs' own lines.

Groups are columns: ``step``, ``loss`` and any other name. ``minutes``, ``ms``, ``hours`` and a ``clock`` (2026-01-31
12:00:00) become ``seconds``; commas between thousands and the colours of a terminal are dropped. A line without a step
belongs to the last that had one, and a line without a time has the last one's. The presets are written after what each
program prints (``SOURCES``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from suite.topics.foreign_runs.log_table import LogTable, from_rows
from suite.topics.foreign_runs.tabular_logs import text_of

NUMBER = r"[-+\d.,eE]+|nan|inf"
CLOCK = r"(?:(?P<clock>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.\d]* .*)?"
SPEEDRUN = (
    rf"step:(?P<step>\d+)/(?P<planned_steps>\d+) val_loss:(?P<val_loss>{NUMBER})"
    rf"(?: val_bpb:(?P<val_bpb>{NUMBER}))?(?:.*?train_time:(?P<ms>[\d.]+)ms)?",
    rf"step:(?P<step>\d+)/(?P<planned_steps>\d+) (?:train_loss:(?P<train_loss>{NUMBER}) )?"
    r".*?train_time:(?P<ms>[\d.]+)ms",
    r"^seed[:=]\s*(?P<seed>\d+)",
)
PRESETS: dict[str, tuple[str, ...]] = {
    "nanochat": (
        rf"^Step (?P<step>\d+) \| Validation bpb: (?P<val_bpb>{NUMBER})",
        rf"^step (?P<step>\d+)(?:/(?P<planned_steps>\d+))? \([\d.]+%\) \| loss: (?P<train_loss>{NUMBER}) .*"
        r"\| total time: (?P<minutes>[\d.]+)m",
        r"^Total batch size (?P<tokens_a_step>[\d,]+)",
    ),
    "modded-nanogpt": SPEEDRUN,
    "parameter-golf": SPEEDRUN,
    "torchtitan": (
        rf"{CLOCK}validate step: *(?P<step>[\d,]+) +loss: *(?P<val_loss>{NUMBER})",
        rf"{CLOCK}\bstep: *(?P<step>[\d,]+) +loss: *(?P<train_loss>{NUMBER})",
    ),
    "composer": (
        r"^\[batch=(?P<step>\d+)(?:/(?P<planned_steps>\d+))?\]",  # under an epoch it counts from its beginning
        r"^\s*Train time/batch: (?P<iterations>\d+)",
        r"^\s*Train time/token: (?P<tokens>\d+)",
        rf"^\s*Train loss/train/total: (?P<train_loss>{NUMBER})",
        rf"^\s*Eval metrics/\S*eval\S*/(?:Language)?CrossEntropy: (?P<val_loss>{NUMBER})",
        r"^\s*Train time_hours/train: (?P<hours>[\d.]+)",
        r"^\s*Train time_minutes/train: (?P<minutes>[\d.]+)",
        r"^\s*Train time_seconds/train: (?P<seconds>[\d.]+)",
    ),
}
SOURCES = {
    "nanochat": "karpathy/nanochat, scripts/base_train.py",
    "modded-nanogpt": "KellerJordan/modded-nanogpt, train_gpt.py",
    "parameter-golf": "openai/parameter-golf, train_gpt.py",
    "torchtitan": "pytorch/torchtitan, torchtitan/components/metrics.py",
    "composer": "mosaicml/composer, composer/loggers/console_logger.py and composer/callbacks/speed_monitor.py",
}
MARKS = {
    "parameter-golf": re.compile(r"step:\d+/\d+ val_loss:\S+ val_bpb:"),
    "modded-nanogpt": re.compile(r"step:\d+/\d+ val_loss:\S+ train_time:"),
    "nanochat": re.compile(r"^Step \d+ \| Validation bpb: ", re.MULTILINE),
    "torchtitan": re.compile(r"\bstep: *[\d,]+ +loss: +[\d.]+ +(?:grad_norm|memory): "),
    "composer": re.compile(r"^\s*(?:Train|Eval) (?:time|loss|metrics)/\S+: ", re.MULTILINE),
}
"""What a preset's lines have and no other's: so a log without a named preset is known."""
CARRIED = ("step", "iterations", "seconds", "seed", "planned_steps")
IN_SECONDS = {"minutes": 60.0, "ms": 1e-3, "hours": 3600.0}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CARD = re.compile(r"NVIDIA (?:GeForce |RTX |Tesla |Quadro )*([A-Z]+\d+[A-Z]*(?:[ -](?:\d+GB|HBM\w*|PCIe|SXM\w*))*)")
THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")


def preset_of(text: str) -> str:
    """Returns whose lines a text has; an empty word where no preset knows it."""
    plain = COLOURS.sub("", text)
    return next((name for name, mark in MARKS.items() if mark.search(plain)), "")


def compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Compiles what a user wrote. Raises ValueError, with one sentence, for what is no pattern with named groups."""
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            raise ValueError(f"--pattern {pattern}: {error}; see https://docs.python.org/3/library/re.html") from None
        if not found[-1].groupindex:
            raise ValueError(f"--pattern {pattern}: it names no groups; write e.g. loss:(?P<loss>\\S+)")
    return found


def read_text(path: Path, patterns: Sequence[str] = (), preset: str = "") -> list[LogTable]:
    """Reads a log by the patterns, or by those of the preset, or of the one whose lines it has."""
    text = text_of(path)
    named = preset or ("" if patterns else preset_of(text))
    if not named and not patterns:
        raise ValueError(
            f"{path}: its lines are of no program that is known ({', '.join(PRESETS)}); say what they look like with "
            r"--pattern 'step (?P<step>\d+) loss (?P<loss>\S+)'"
        )
    expressions = compiled([*patterns, *PRESETS.get(named, ())])
    rows: list[tuple[int, dict[str, Any]]] = []
    facts = {"lines of": named} if named else {}
    if card := CARD.search(text):
        facts["gpu"] = card[1]
    last: dict[str, Any] = {}
    began: datetime | None = None
    for number, line in enumerate(COLOURS.sub("", text).splitlines(), 1):
        fields = _fields_of(line, expressions)
        if not fields:
            continue
        if clock := fields.pop("clock", None):
            now = datetime.fromisoformat(clock)
            began = began or now
            fields["seconds"] = (now - began).total_seconds()
        last |= {name: value for name, value in fields.items() if name in CARRIED}
        facts |= {name: value for name, value in fields.items() if name in ("tokens_a_step",)}
        if fields.keys() - {"seed", "tokens_a_step"}:
            rows.append((number, last | fields))
    if not rows:
        raise ValueError(f"{path}: no line is like {expressions[0].pattern}; mend --pattern, or name another --preset")
    return [from_rows(str(path), rows, facts=facts)]


def _fields_of(line: str, expressions: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    """Returns what the first expression that a line is like finds in it."""
    for expression in expressions:
        if match := expression.search(line):
            fields: dict[str, Any] = {}
            for name, value in match.groupdict().items():
                if value is None:
                    continue
                plain = value.replace(",", "") if THOUSANDS.fullmatch(value) else value
                if name in IN_SECONDS:
                    fields["seconds"] = float(plain) * IN_SECONDS[name]
                else:
                    fields[name] = plain
            return fields
    return {}
