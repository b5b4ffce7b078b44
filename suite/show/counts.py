"""Shows a counted step beside its reference's, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from suite.judge.metrics import METRICS
from suite.measure.at_scale.full_size import SideBySide, StepCount
from suite.record.paper_scale import PROVENANCE
from suite.record.schema import COUNTS
from suite.show.amounts_in_words import amount

FLOAT32_BYTES = 4
TITLES = {name: metric.title + (", bytes" if metric.unit == "B" else "") for name, metric in METRICS.items()} | {
    "parameter_bytes": "parameters, bytes",
    "gradient_bytes": "gradients, bytes",
    "state_bytes": "model states when the backward pass ends, bytes",
}


def title(pair: SideBySide) -> str:
    """Says what was counted, in one line: every report of these numbers begins with how they came about."""
    at, side = pair.scale.setting, pair.stack if pair.stack.counters else pair.reference or pair.stack
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in side.batch.items())
    model = Path(at.model).name if at.model else at.size
    operators = "the operators of a GPU" if at.device == "cuda" else "the operators of a CPU"
    rank = f"rank 0 of {side.ranks}" if side.ranks > 1 else ""
    parts = (
        at.baseline,
        model,
        at.recipe,
        at.task,
        operators,
        rank,
        shapes and f"batch {shapes} (shapes of {side.data})",
    )
    return f"{PROVENANCE}: " + " · ".join(filter(None, parts))


def lines(pair: SideBySide) -> list[tuple[str, ...]]:
    """Lists a quantity a line: its title, the reference's number if there is one, the stack's, their ratio."""
    ours, ratios = pair.stack.quantities(), pair.ratios()
    theirs = pair.reference.quantities() if pair.reference else {}
    rows = []
    for name in ours or theirs:
        label = TITLES.get(name, f"  of it {name.removeprefix('peak.').replace('_', ' ')}")
        cells = [amount(name, numbers.get(name)) for numbers in ([theirs, ours] if pair.reference else [ours])]
        ratio = [f"{ratios[name]:.4g}" if name in ratios else ""] if pair.reference else []
        rows.append((label, *cells, *ratio))
    return rows


def notes(pair: SideBySide) -> list[str]:
    """Says why a side was not counted, what its FLOPs leave out, and why a counter has no number here."""
    sentences = [f"{COUNTS[name].title}: unavailable: {why}" for name, why in pair.stack.not_counted().items()]
    if pair.stack.counters and pair.stack.counters.compiled:
        sentences.append("saved for backward: by the compiled graph; FLOPs: of the eager operators")
    for side in filter(None, (pair.reference, pair.stack)):
        sentences += _of_ranks(side)
    plain = pair.reference or pair.stack
    if plain.counters and (size := round(plain.parameter_bytes / plain.counters.parameter_count)) < FLOAT32_BYTES:
        sentences.append(
            f"parameters take {size} bytes each, as the model's own configuration says, and so do their gradients and "
            f"what the optimizer keeps of them; in float32 each takes {FLOAT32_BYTES}"
        )
    for side in filter(None, (pair.reference, pair.stack)):
        if side.counters is None:
            sentences.append(f"{side.stack}: unavailable: {side.unavailable}")
        elif side.counters.uncounted_operators:
            sentences.append(
                f"{side.stack}: FLOPs are a lower bound, without {_calls(side.counters.uncounted_operators)}"
            )
    return sentences


def _of_ranks(side: StepCount) -> list[str]:
    """Says what a rank of several holds of the model's states, and what it sends."""
    if side.ranks == 1 or side.state_bytes_per_parameter is None:
        return []
    sent = (
        f"{name.replace('_', ' ')} {amount('communication_bytes', collective['ring_bytes'])} of tensors of "
        f"{amount('communication_bytes', collective['bytes'])}"
        for name, collective in side.collectives().items()
    )
    return [
        f"{side.stack}: each of {side.ranks} ranks holds {side.state_bytes_per_parameter:.4g} bytes of model states a "
        f"parameter, and sends on an ideal ring {', '.join(sent)}"
    ]


def _calls(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ×{count}" for name, count in operators.items())
