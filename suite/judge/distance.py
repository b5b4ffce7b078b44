"""Tells how far evidence lies from the setting in which a paper saw what it claims: what differs, field by field.

The ``setting`` of a claim is compared with what the records say of the evidence. Which fields count follows from the
claim's metric: a count depends on the model's shapes alone, a time on the device too, a quality on data, tokens and
tuning. An exact count whose card names no setting is said of any model, and is near everywhere; what has noise and no
setting is near nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from suite.entries.card import Claim, PaperSetting
from suite.judge.metrics import MetricKind, metric_of
from suite.record.job import Size

OWN_SIZES: tuple[Size, ...] = ("base", "large")
"""Where a baseline has the size of published models."""
AS_LARGE = 2.0
"""Parameters within this factor are as many."""
LONGEST_ROW = 1024
"""Tokens of an example, at most: what so many examples cannot have been is known without their length."""
OPTIMIZER = "AdamW"
"""Of every recipe's reference."""
ANY = "any"
"""Of an architecture: the statement is of every model."""
UNSAID = "the card names no setting of the paper's"

MEANT: dict[str, tuple[str, ...]] = {
    "loss": ("loss", "perplexity"),
    "loss_at_equal_time": ("loss", "perplexity"),
    "equivalent_budget": ("loss", "perplexity"),
    "time_to_quality": ("loss", "perplexity"),
}
"""Words by one of which a paper names the quantity that a metric measures, or to which it measures."""

FIELDS: dict[MetricKind, tuple[str, ...]] = {
    "counted": ("model",),
    "timed": ("model", "device", "clock"),
    "measured": ("model", "device", "clock"),
    "learned": ("model", "data", "tokens", "metric", "optimizer", "tuned"),
    "composed": ("model", "device", "clock", "data", "tokens", "metric", "optimizer", "tuned"),
}
"""What a metric of a kind depends on."""


@dataclass(frozen=True)
class EvidenceSetting:
    """Says where evidence comes from. None: not recorded.

    ``size``: of the baseline, empty for another model, then named by ``model``. ``examples``: that were trained on.
    ``device``: ``cpu``, or the GPU's name. ``tuned``: whether the rates were, on both sides.
    """

    baseline: str
    size: str
    model: str = ""
    parameters: float | None = None
    examples: int | None = None
    data: str = ""
    device: str = "cpu"
    tuned: bool = False


def differences(claim: Claim, exact: bool, here: EvidenceSetting) -> tuple[str, ...]:
    """Tells what sets the evidence apart from the paper's setting; nothing where it is near. ``exact``: whether the
    claim's verdict follows from one run of each side."""
    there = claim.setting
    if there is None or not (there.architecture or there.parameters):
        return () if exact else (UNSAID,)
    metric = metric_of(claim.metric)
    kind: MetricKind = "counted" if exact else metric.kind if metric else "learned"
    reads = {
        "model": lambda: [*_model(there, here), *_parameters(there, here)],
        "device": lambda: _device(there, here),
        "clock": lambda: _clock(there, claim.metric),
        "data": lambda: _data(there, here),
        "tokens": lambda: _tokens(there, here),
        "metric": lambda: _metric(there, claim.metric),
        "optimizer": lambda: _optimizer(there),
        "tuned": lambda: (
            [f"rates not tuned, where the paper tuned {there.tuned}"] * (bool(there.tuned) and not here.tuned)
        ),
    }
    return tuple(words for field in FIELDS[kind] for words in reads[field]())


def _model(there: PaperSetting, here: EvidenceSetting) -> list[str]:
    """Compares the architecture: one that a baseline has at its own size, or whose number of parameters is compared
    instead."""
    alike = here.baseline in there.baselines and not here.model
    if alike and (there.parameters or here.size in OWN_SIZES):
        return []
    own = here.model or f"{here.baseline} at {here.size}"
    return [f"{own}, not {there.architecture}"] if there.architecture not in ("", ANY) else []


def _parameters(there: PaperSetting, here: EvidenceSetting) -> list[str]:
    if there.parameters is None:
        return []
    if here.parameters is None:
        return ["parameters not counted"]
    if 1 / AS_LARGE <= here.parameters / there.parameters <= AS_LARGE:
        return []
    return [f"{_count(here.parameters)} parameters, not {_count(there.parameters)}"]


def _tokens(there: PaperSetting, here: EvidenceSetting) -> list[str]:
    if there.tokens is None:
        return []
    if here.examples is None:
        return ["examples not recorded"]
    near = here.examples * LONGEST_ROW >= there.tokens / AS_LARGE
    return [] if near else [f"{_count(here.examples)} examples, not {_count(there.tokens)} tokens or images"]


def _device(there: PaperSetting, here: EvidenceSetting) -> list[str]:
    shared = _words(there.device) & _words(here.device)
    return [f"{here.device}, not {there.device}"] if there.device and not shared else []


def _data(there: PaperSetting, here: EvidenceSetting) -> list[str]:
    shared = {word for word in _words(there.data) & _words(here.data) if len(word) > 3}
    return [f"other data than {there.data}"] if there.data and not shared else []


def _metric(there: PaperSetting, metric: str) -> list[str]:
    """Compares the claim's own quantity; the last part of a name (``final.accuracy``) is one that papers use."""
    named = MEANT.get(metric, (metric.rpartition(".")[2],))
    alike = not there.metric or any(name in there.metric.lower() for name in named)
    return [] if alike else [f"judged by {metric}, not {there.metric}"]


def _clock(there: PaperSetting, metric: str) -> list[str]:
    work = any(word in there.clock.lower() for word in ("flop", "comput"))
    return [f"judged by time, where the paper counts {there.clock}"] if work and "flops" not in metric else []


def _optimizer(there: PaperSetting) -> list[str]:
    other = there.optimizer and there.optimizer.lower() != OPTIMIZER.lower()
    return [f"a reference trained by {OPTIMIZER}, not {there.optimizer}"] if other else []


def out_of_reach(claim: Claim, flops: float | None, budget_high: float | None) -> str:
    """Tells why arithmetic keeps a time from reaching what is claimed; empty where it does not.

    What saves FLOPs takes at best their share of the reference's time, over the budget that its loss is worth.
    """
    metric = metric_of(claim.metric)
    is_time = metric is not None and (metric.kind == "timed" or metric.name == "time_to_quality")
    if not is_time or claim.expected is None or claim.relation not in ("<", "<=") or flops is None or flops >= 1:
        return ""
    gained = max(1.0, budget_high or 1.0) if metric and metric.quality else 1.0
    least = flops / gained
    most = claim.expected * (1 + claim.tolerance)
    return f"{flops:.2g} of the FLOPs here, which cannot give {most:.2g} of the time" if most < least else ""


def summary(differs: Sequence[str]) -> str:
    """Returns ``near``, or ``far: cpu, not 8 A100; …``"""
    return f"far: {'; '.join(differs)}" if differs else "near"


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def _count(x: float) -> str:
    """Returns ``0.15 M``, ``124 M``, ``175 B``."""
    for scale, unit in ((1e9, "B"), (1e5, "M"), (1e3, "k")):
        if x >= scale:
            return f"{x / max(scale, 1e6 if unit == 'M' else scale):.3g} {unit}"
    return f"{x:.3g}"
