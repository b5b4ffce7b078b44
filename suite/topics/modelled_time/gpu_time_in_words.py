"""Shows a modelled step beside its reference's, as people read it: its first word is *modelled*, and it has no
colour."""

from __future__ import annotations

from math import ceil

from suite.measure.at_scale.full_size import SideBySide, StepCount
from suite.topics.modelled_time.devices import Gpu
from suite.topics.modelled_time.gpu_links import collectives_of, fabric_of
from suite.topics.modelled_time.modelled import PROVENANCE, believed
from suite.topics.modelled_time.roofline import ModelledStep
from suite.topics.modelled_time.traced import StepTime, TimesBeside

RESERVED = "reserved by torch's allocator, % (a guess)"
"""Beside what nvidia-smi showed of nine published fine-tuning runs it is off by 11 % in the middle, from 24 % too
little to 15 % too much: the study's ``reserved.csv``."""
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
    own = [_ms(step.step_s if step else None) for step in steps]
    rows: list[tuple[str, ...]] = [("step, ms", *own, *[f"{times.ratio:.3g}" if times.ratio else ""] * _two(steps))]
    batches = [_examples(count) for count in (counts.reference, counts.stack) if count is not None]
    if len(set(batches)) > 1:  # a step is not of as much work
        rows.append(_line("examples a step", steps, list(map(float, batches))))
    kinds = dict.fromkeys(kind for step in reversed(steps) if step for kind in step.by_kind)
    for kind in kinds:
        shares = [step.by_kind.get(kind, 0.0) / step.step_s for step in steps if step]
        if max(shares) >= LISTED:
            rows.append((f"  of it {kind}, ms", *(_of_kind(step, kind) for step in steps), *[""] * _two(steps)))
    several = any(side.ranks > 1 for side in sides)
    if several:
        rows += [
            (
                "links beside operators, ms",
                *(_ms(step.beside_s if step else None) for step in steps),
                *[""] * _two(steps),
            ),
            ("links waited for, ms", *(_ms(step.waited_s if step else None) for step in steps), *[""] * _two(steps)),
        ]
    for name, values in (
        ("host, ms", [1e3 * step.host_s if step else None for step in steps]),
        ("MFU, %", [100 * step.mfu if step else None for step in steps]),
        (f"energy{' of a GPU' if several else ''}, J", [step.energy_j if step else None for step in steps]),
    ):
        rows.append(_line(name, steps, values, times.ratio is not None or name.startswith("host")))
    limits = tuple(step.limit if step else "unavailable" for step in steps)
    rows.append(("waits for", *limits, *[""] * _two(steps)))
    peaks = [_peak(count) for count in (counts.reference, counts.stack) if count is not None]
    if any(peaks):
        memory = 1e9 * times.device.memory_gb
        of_memory: list[float | None] = [100 * peak / memory if peak else None for peak in peaks]
        rows.append(_line(f"tensors at peak, % of {times.device.memory_gb:g} GB", steps, of_memory))
        held = [side.trace.reserved_bytes if side.trace else 0 for side in sides]
        rows.append(_line(RESERVED, steps, [100 * nbytes / memory if nbytes else None for nbytes in held]))
    return rows


def notes(times: TimesBeside) -> list[str]:
    """Says how far it is believed and by what, and why a side has no time."""
    sides = [side for side in (times.reference, times.stack) if side is not None]
    sentences = [f"{side.stack}: time unavailable: {side.unavailable}" for side in sides if side.step is None]
    known = [side for side in sides if side.step is not None]
    sentences += [traffic(side, times.device) for side in known if side.ranks > 1]
    alike = len({side.ranks for side in known}) < 2
    for side in known[-1:] if alike else known:
        of = "a step's time" if alike else f"{side.stack}: a step's time"
        sentences.append(f"{of}: {believed_within(side)}")
    if times.ratio is not None and times.change is None:
        sentences.append(
            "the ratio: 1, from 1 to 1, as both run equal operators, whatever the constants; a recipe that does not do "
            "already what is asked for shows more: --recipe classic"
        )
    elif times.change is not None and times.ratio_band is None:
        sentences.append(f"no ratio: the two differ in {times.change}, and {believed().no_bands[times.change]}")
    elif times.ratio is not None and times.ratio_band is not None:
        width = times.ratio_band.half_width
        low, high = times.ratio / (1 + width), times.ratio * (1 + width)
        tells = "" if not low <= 1 <= high else "; which is faster it cannot tell"
        sentences.append(
            f"the ratio: {times.ratio:.3g}, from {low:.3g} to {high:.3g}, as the two differ in {times.change} "
            f"({_evidence(times.ratio_band.residuals, times.ratio_band.sources)}){tells}"
        )
    return sentences


def traffic(side: StepTime, device: Gpu) -> str:
    """Says what a step on several GPUs spends on links, and how that lies beside what they compute."""
    assert side.step is not None and side.trace is not None
    fabric = fabric_of(device)
    nodes = ceil(side.ranks / fabric.node)
    where = f"{nodes} nodes of {fabric.node}" if nodes > 1 else "one node"
    rates = f"{fabric.inside_gb_s:g} GB/s a GPU inside" + (f", {fabric.across_gb_s:g} across" if nodes > 1 else "")
    calls = collectives_of(side.trace)
    count = sum(call.times for call in calls)
    beside = sum(call.times for call in calls if call.hidden)
    return (
        f"{side.stack}: {side.ranks} GPUs, {where} ({rates}; {fabric.source}); of {count:g} collectives {beside:g} run "
        f"beside products that need none of them ({1e3 * side.step.beside_s:.3g} ms of links), and the step waits "
        f"{1e3 * side.step.waited_s:.3g} ms for the others"
    )


def believed_within(side: StepTime) -> str:
    """Says how far a step's time is believed, and by what."""
    band = side.band
    if band is None:
        return "how far it is off is not known"
    evidence = _evidence(band.residuals, band.sources)
    if not side.seen and band.residuals:
        evidence = f"{evidence}, on GPUs that it had not seen either: no published step is known on this one"
    return f"{_within(band.half_width)}; {evidence}"


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


def _ms(seconds: float | None) -> str:
    return "unavailable" if seconds is None else f"{1e3 * seconds:.4g}"


def _line(
    name: str, steps: list[ModelledStep | None], values: list[float | None], compared: bool = True
) -> tuple[str, ...]:
    cells = [f"{value:.4g}" if value else "unavailable" for value in values]
    if not _two(steps):
        return (name, *cells)
    theirs, ours = values
    return (name, *cells, f"{ours / theirs:.3g}" if compared and ours and theirs else "")


def _two(steps: list[ModelledStep | None]) -> bool:
    return len(steps) > 1


def _examples(side: StepCount) -> int:
    return next((shape[0] for shape in side.batch.values() if shape), 0)


def _peak(side: StepCount) -> int | None:
    return side.counters.peak_tensor_bytes if side.counters and not side.counters.compiled else None
