"""Shows a modelled step beside its reference's, as people read it: its first word is *modelled*, and it has no
colour."""

from __future__ import annotations

from suite.measure.at_scale.full_size import SideBySide, StepCount
from suite.topics.modelled_time.modelled import PROVENANCE
from suite.topics.modelled_time.roofline import ModelledStep
from suite.topics.modelled_time.traced import TimesBeside

LISTED = 0.005
"""Of a step: classes of operators below it are not listed."""


def title(times: TimesBeside) -> str:
    """Says what is modelled, in one line."""
    reached = times.device.reached
    return (
        f"{PROVENANCE}, not measured: {times.device.title} · {times.software.name} · constants {reached.kind} "
        f"({reached.source})"
    )


def lines(times: TimesBeside, counts: SideBySide) -> list[tuple[str, ...]]:
    """Lists a quantity a line: the reference's if there is one, the stack's, their ratio."""
    sides = [side for side in (times.reference, times.stack) if side is not None]
    steps = [side.step for side in sides]
    if not any(steps):
        return []
    name = "own operators of a rank, ms" if any(side.why_not_whole for side in sides) else "step, ms"
    rows = [_line(name, steps, [1e3 * step.step_s if step else None for step in steps], times.ratio)]
    kinds = dict.fromkeys(kind for step in reversed(steps) if step for kind in step.by_kind)
    for kind in kinds:
        shares = [step.by_kind.get(kind, 0.0) / step.step_s for step in steps if step]
        if max(shares) >= LISTED:
            rows.append((f"  of it {kind}, ms", *(_of_kind(step, kind) for step in steps), *[""] * _two(steps)))
    for name, values in (
        ("host, ms", [1e3 * step.host_s if step else None for step in steps]),
        ("MFU, %", [100 * step.mfu if step else None for step in steps]),
        ("energy, J", [step.energy_j if step else None for step in steps]),
    ):
        rows.append(_line(name, steps, values))
    limits = tuple(step.limit if step else "unavailable" for step in steps)
    rows.append(("waits for", *limits, *[""] * _two(steps)))
    peaks = [_peak(count) for count in (counts.reference, counts.stack) if count is not None]
    if any(peaks):
        memory = 1e9 * times.device.memory_gb
        of_memory: list[float | None] = [100 * peak / memory if peak else None for peak in peaks]
        rows.append(_line(f"tensors at peak, % of {times.device.memory_gb:g} GB", steps, of_memory))
    return rows


def notes(times: TimesBeside) -> list[str]:
    """Says how far it is believed and by what, and why a side has no time."""
    sides = [side for side in (times.reference, times.stack) if side is not None]
    sentences = [f"{side.stack}: time unavailable: {side.unavailable}" for side in sides if side.step is None]
    parts = [side for side in sides if side.why_not_whole]
    sentences += [f"{side.stack}: {side.why_not_whole}, and no band holds for it" for side in parts]
    band = times.time_band
    if any(side.step for side in sides if side not in parts):
        sentences.append(f"a step's time: {_within(band.half_width)}; {_evidence(band.residuals, band.sources)}")
    if times.ratio is not None and times.change is None:
        sentences.append(
            "the ratio: 1, from 1 to 1, as both run equal operators, whatever the constants; a recipe that does not do "
            "already what is asked for shows more: --recipe classic"
        )
    elif times.ratio is not None and times.ratio_band is not None:
        width = times.ratio_band.half_width
        low, high = times.ratio / (1 + width), times.ratio * (1 + width)
        tells = "" if not low <= 1 <= high else "; which is faster it cannot tell"
        sentences.append(
            f"the ratio: {times.ratio:.3g}, from {low:.3g} to {high:.3g}, as the two differ in {times.change} "
            f"({_evidence(times.ratio_band.residuals, times.ratio_band.sources)}){tells}"
        )
    return sentences


def _within(half_width: float) -> str:
    return f"within a factor of {1 + half_width:.2f} either way"


def _evidence(residuals: int, sources: int) -> str:
    if not residuals:
        return "a guess: no published steps say more"
    return f"9 of 10 of {residuals} published ones from {sources} sources that the fit had not seen keep within it"


def _of_kind(step: ModelledStep | None, kind: str) -> str:
    if step is None:
        return "unavailable"
    seconds = step.by_kind.get(kind)
    return f"{1e3 * seconds:.3g} ({step.bound_by[kind]})" if seconds else "0"


def _line(
    name: str, steps: list[ModelledStep | None], values: list[float | None], ratio: float | None = None
) -> tuple[str, ...]:
    if ratio is None and _two(steps) and all(values):
        ours, theirs = values[1], values[0]
        ratio = ours / theirs if ours and theirs else None
    cells = [f"{value:.4g}" if value else "unavailable" for value in values]
    return (name, *cells, *([f"{ratio:.3g}" if ratio else ""] if _two(steps) else []))


def _two(steps: list[ModelledStep | None]) -> bool:
    return len(steps) > 1


def _peak(side: StepCount) -> int | None:
    return side.counters.peak_tensor_bytes if side.counters and not side.counters.compiled else None
