"""Shows every solver's answer to a budget of memory, as people read it."""

from __future__ import annotations

from pathlib import Path

from suite.topics.memory_plan.within_budgets import MemoryPlan


def title(planned: MemoryPlan) -> list[str]:
    """Says what was planned, what is there besides activations, and the two ends: a plain pass and the least peak."""
    at = planned.scale.setting
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in planned.batch.items())
    model = Path(at.model).name if at.model else at.size
    depths = " and ".join(str(chain.depth) for chain in planned.chains)
    plain, least = planned.plain, planned.least
    return [
        f"{at.baseline} · {model} · {at.recipe} · {depths} blocks · batch {shapes}",
        f"{gigabytes(planned.memory_bytes)} of memory, of which parameters, optimizer state and batch take "
        f"{gigabytes(planned.resident_bytes)}",
        f"plain: {seconds(plain.time_s)} and {gigabytes(planned.peak_bytes(plain))}; the least without "
        f"a second tier: {seconds(least.time_s)} and {gigabytes(planned.peak_bytes(least))}. Peaks are "
        f"counted; times are modelled: {planned.device.flops_per_s / 1e12:.4g} TFLOP/s, "
        f"{planned.device.link_bytes_per_s / 1e9:.4g} GB/s each way",
    ]


def lines(planned: MemoryPlan) -> list[tuple[str, ...]]:
    """Lists a solver a line: its time, that over a plain pass's, the device's peak, what runs again and what moves."""
    rows: list[tuple[str, ...]] = []
    for answer in planned.answers:
        if answer.plan is None:
            rows.append((answer.technique, "does not fit", "", "", "", "", seconds(answer.solve_s)))
            continue
        again = sum(schedule.extra_forwards for schedule in answer.plan.schedules)
        moved = sum(prediction.out_bytes for prediction in answer.plan.predictions)
        rows.append(
            (
                answer.technique,
                seconds(answer.plan.time_s),
                f"×{answer.plan.time_s / planned.plain.time_s:.3f}",
                gigabytes(planned.peak_bytes(answer.plan)),
                f"{again} blocks" if again else "",
                gigabytes(moved) if moved else "",
                seconds(answer.solve_s),
            )
        )
    return rows


def gigabytes(nbytes: float) -> str:
    """Writes bytes in GB, which are 10^9 bytes, as devices are sold."""
    return f"{nbytes / 1e9:.4g} GB"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
