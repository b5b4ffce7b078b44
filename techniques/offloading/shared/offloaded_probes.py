"""Tells what a recorded step shows of offloading: its transfers, and all that a planned step shows."""

from __future__ import annotations

from suite.chain.chain import Chain, Link
from suite.chain.plan import budget_between
from suite.chain.schedule import Schedule, Value
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.offloading.shared.offloaded import Offloaded
from techniques.shared.recomputation_probes import pass_peak_bytes, scheduled_probes


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "throughout", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values",
    "throughout",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged("runs_beside_plan", "Every block runs as often as the schedule says", "throughout", id="runs_as_planned")
@judged("out_over_in", "What leaves comes back once", "throughout", id="comes_back", equals=1.0)
@judged("left_behind_bytes", "The second tier is empty after the pass", "throughout", id="leaves_nothing")
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", at_most=1.0, kind="counted")
def offloaded_probes(recording: Recording, own: Offloaded) -> dict[str, float]:
    """Returns those of all that plan, and of one more pass: ``out_beside_plan``: bytes that left, more or fewer than
    planned; ``out_over_in``: over those that came back; ``left_behind_bytes``: what the second tier still holds after
    it."""
    plan, tier = own.plan(recording.run), own.second_tier
    assert tier is not None
    out, back = tier.bytes_out, tier.bytes_in
    pass_peak_bytes(recording, own)
    out, back = tier.bytes_out - out, tier.bytes_in - back
    planned = sum(prediction.out_bytes for prediction in plan.predictions)
    return scheduled_probes(recording, own) | {
        "out_beside_plan": abs(out - planned),
        "out_over_in": out / back,
        "left_behind_bytes": tier.held_bytes,
    }


def left_in(schedule: Schedule) -> set[Value]:
    """Returns the values that a schedule moves."""
    return {op.value for op in schedule.ops if op.kind == "offload"}


def budgets(chain: Chain, count: int = 6) -> list[int]:
    """Returns budgets from the least peak to a plain pass's."""
    return [budget_between([chain], n / (count - 1)) for n in range(count)]


def even_link(chain: Chain) -> Link:
    """Returns a link that carries what a plain pass saves in the time of the pass."""
    rate = (sum(chain.activation_bytes) + sum(sum(stage.saved_bytes) for stage in chain.stages)) / chain.plain_s
    return Link(rate, rate)


def times(link: Link, factor: float) -> Link:
    """Returns a link so many times as fast."""
    return Link(link.out_bytes_per_s * factor, link.in_bytes_per_s * factor)
