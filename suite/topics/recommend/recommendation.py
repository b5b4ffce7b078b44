"""Says what to train a model with, as people read it: the best stack and why, its runners-up, and what was not
tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from suite.entries.cards import with_cards
from suite.entries.catalogue import catalogue
from suite.judge.rows import finite
from suite.record.amounts import amount_of
from suite.record.job import BASELINE
from suite.topics.memory_plan.plans_in_words import seconds
from suite.topics.recommend.choice import BY_FLOPS, KEEPS, Candidate, Estimate, Goal, Trial
from suite.topics.recommend.finalists import Rung
from suite.topics.recommend.whole_answer import Contribution, Recommendation

GOALS: Mapping[Goal, str] = {
    "time": "the least time to the same quality",
    "memory": f"the least memory at no less than {KEEPS:g} of the reference's budget",
    "quality": "the best quality at as many steps, at the worse end of its interval",
}
RANKED = ("stack", "peak", "of plain", "time to quality", "training time", "equivalent budget", "step")
MEASURED = ("stack", "peak", "time to quality", "training time", "equivalent budget", "final loss")
CONTRIBUTED = ("without", "peak", "training time", "equivalent budget")
UNKNOWN = "unknown"
NO_LOOP = "no meaning in a loop of yours; leantrain apply says of each why"
SHOWN = 8  # of a list


def title(answer: Recommendation) -> list[str]:
    """Says what was asked, and how many stacks there were to choose from."""
    question, ranking = answer.choice.question, answer.choice.ranking
    at, plain = question.scale.setting, answer.choice.plain
    model = Path(at.model).name if at.model else at.size
    times = f"modelled on {question.gpu.title}" if question.gpu else "as the records have them"
    counted = len(ranking.fitting) + len(ranking.too_large)
    return [
        f"{at.baseline} · {model} · {at.recipe} · {at.task} · {amount_of(question.memory_bytes)} of memory · "
        f"{GOALS[question.goal]}",
        f"as it is: {amount_of(plain.peak_bytes)}, {plain.flops / 1e12:.3g} TFLOP a step"
        + (f", {seconds(plain.step_s)} modelled" if plain.step_s else ""),
        f"{counted} stacks were counted at this size, exactly: {len(ranking.fitting)} fit, {len(ranking.too_large)} do "
        f"not and were not run; {len(ranking.uncounted)} do not go on this model. Times are {times}. A GPU's allocator "
        "and context take more than tensors do",
    ]


def answer_in_words(answer: Recommendation) -> str:
    """Says the best stack with its interval, and what that rests on."""
    best = answer.best
    if best is None:
        least = min(answer.choice.ranking.too_large, key=lambda candidate: candidate.cost.peak_bytes)
        return (
            f"Nothing that was counted fits: the least is {amount_of(least.cost.peak_bytes)}, {least.stack}. Give as "
            "much memory, or take a smaller model or batch"
        )
    name = "the model as it is, without any technique" if best.stack == BASELINE else best.stack
    if answer.measured is None:
        return (
            f"Best by counts and records, not measured here: {name}. {_expected(best)}. "
            f"Not measured: {answer.why_unmeasured}"
        )
    last = answer.measured.rungs[-1]
    trial = last.trials.get(best.stack)
    over = "the model as it is" if answer.measured.reference == BASELINE else answer.measured.reference
    cut = answer.measured.cut_short and f". No further rung was measured: {answer.measured.cut_short}"
    if trial is None:
        return f"Best here: {name}, to which all others were compared; none did better{cut}"
    busy = f"; {answer.measured.busy:.1f} cores were busy with other work" if answer.measured.busy > 0.5 else ""
    replicates = "one seed and set" if last.replicates == 1 else f"{last.replicates} seeds and sets"
    return (
        f"Best here: {name}. To {over}, measured over {last.steps} steps with {replicates} of processes: time to the "
        f"same quality {to_quality(trial)}, peak {amount_of(best.cost.peak_bytes)} (counted){busy}{cut}"
    )


def _expected(best: Candidate) -> str:
    both = _joined(best.time, best.quality)
    return f"Peak {amount_of(best.cost.peak_bytes)}, counted; time to the same quality {ratio(both)}, expected"


def ratio(estimate: Estimate | None) -> str:
    """Writes, as in ``×0.91 [0.88, 0.95]``: a cost, below 1 is better; ``=`` before an exact one."""
    if estimate is None or estimate.source == UNKNOWN:
        return UNKNOWN
    number = f"{math.exp(estimate.log):.3g}"
    low, high = estimate.ends
    if estimate.source.startswith("at "):
        return f"{estimate.source.split(',')[0]} ×{number}"
    if estimate.source == BY_FLOPS:  # not exact as a time, though the count is
        return f"×{number} ({BY_FLOPS})"
    if not math.isfinite(estimate.error):
        return f"×{number} (one replicate)"
    return f"×{number} [{low:.3g}, {high:.3g}]" if estimate.error else f"=×{number}"


def budget(quality: Estimate | None) -> str:
    """Writes the equivalent budget of a quality, in the reference's own: above 1 is better."""
    if quality is None:
        return UNKNOWN
    turned = {"at most": "at least", "at least": "at most"}
    word = quality.source.split(",")[0]
    return ratio(Estimate(-quality.log, quality.error, turned.get(word, quality.source)))


def to_quality(trial: Trial) -> str:
    """Writes the time to the same quality of a measured stack."""
    if trial.quality is None:
        return f"{UNKNOWN}, as no scaling curve of the reference is known; training time {ratio(trial.time)}"
    return ratio(_joined(trial.time, trial.quality))


def _joined(time: Estimate, quality: Estimate | None) -> Estimate | None:
    """Computes the time to the same quality; None where either is not known."""
    if quality is None or time.source == UNKNOWN:
        return None
    word = quality.source if quality.source.startswith("at ") else BY_FLOPS if time.source == BY_FLOPS else ""
    return Estimate(time.log + quality.log, math.hypot(time.error, quality.error), word)


def ranked(candidates: Iterable[Candidate], plain_bytes: int) -> list[tuple[str, ...]]:
    """Lists a counted stack a line: what is exact, and what its members' records make expected."""
    return [
        (
            candidate.stack,
            amount_of(candidate.cost.peak_bytes),
            f"=×{candidate.cost.peak_bytes / plain_bytes:.3g}",
            ratio(_joined(candidate.time, candidate.quality)),
            ratio(candidate.time),
            budget(candidate.quality),
            seconds(candidate.cost.step_s) if candidate.cost.step_s else "",
        )
        for candidate in candidates
    ]


def measured(rung: Rung, peaks: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Lists a finalist a line, over the reference."""
    rows: list[tuple[str, ...]] = []
    for trial in rung.trials.values():
        peak = amount_of(peaks[trial.stack]) if trial.stack in peaks else ""
        if trial.failure:
            rows.append((trial.stack, peak, trial.failure, "", "", ""))
        else:
            both = ratio(_joined(trial.time, trial.quality))
            rows.append((trial.stack, peak, both, ratio(trial.time), budget(trial.quality), ratio(trial.loss)))
    return rows


def contributed(parts: Iterable[Contribution]) -> list[tuple[str, ...]]:
    """Lists a member a line: the whole stack over what is left without it."""
    return [
        (
            f"{part.member} (leaves {part.without})",
            (ratio(Estimate(part.peak)) if part.peak is not None else part.cost.why_not)
            + (
                ""
                if part.fits or part.peak is None
                else f": without it {amount_of(part.cost.peak_bytes)}, which does not fit and was not run"
            ),
            ratio(part.time),
            budget(part.quality),
        )
        for part in parts
    ]


def untried(answer: Recommendation) -> list[str]:
    """Says what was not tried, and why, the most frequent reason first."""
    reasons: dict[str, list[str]] = {}
    sound, _ = with_cards(catalogue())
    for name, reason in answer.choice.left_out.items():
        shared = NO_LOOP if name in sound and reason == sound[name].card.own_loop else reason
        reasons.setdefault(shared, []).append(name)
    lines = [
        f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}: {reason}"
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    lines += [f"{cost.stack}: {cost.why_not}" for cost in answer.choice.ranking.uncounted]
    if answer.choice.uncounted:
        lines.append(f"{answer.choice.uncounted} stacks of the same members promise less, and were not counted")
    return lines


def as_dict(answer: Recommendation) -> dict[str, Any]:
    """Returns JSON values; every estimate is a cost ratio to the baseline with its interval, None where nothing is
    known."""
    choice, done = answer.choice, answer.measured
    return {
        "scale": choice.question.scale.setting.model_dump(),
        "memory_bytes": choice.question.memory_bytes,
        "goal": choice.question.goal,
        "gpu": choice.question.gpu and choice.question.gpu.name,
        "plain": choice.plain.model_dump(),
        "best": answer.best and answer.best.stack,
        "sentence": answer_in_words(answer),
        "provenance": "measured" if done else "counted, with what records make expected",
        "why_unmeasured": answer.why_unmeasured or None,
        "fitting": [_candidate(candidate) for candidate in choice.ranking.fitting],
        "too_large": [_candidate(candidate) for candidate in choice.ranking.too_large],
        "uncounted": [cost.model_dump() for cost in choice.ranking.uncounted],
        "uncounted_stacks": choice.uncounted,
        "left_out": dict(choice.left_out),
        "rungs": [
            {
                "steps": rung.steps,
                "replicates": rung.replicates,
                "reference": done.reference,
                "trials": [_trial(trial) for trial in rung.trials.values()],
            }
            for rung in done.rungs
        ]
        if done
        else [],
        "cut_short": (done.cut_short if done else "") or None,
        "contributions": [
            {
                "member": contribution.member,
                "without": contribution.without,
                "without_fits": contribution.fits,
                "without_peak_bytes": contribution.cost.peak_bytes or None,
                "time": _estimate(contribution.time),
                "quality": _estimate(contribution.quality),
            }
            for contribution in answer.contributions
        ],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    known = {"time": _estimate(candidate.time), "quality": _estimate(candidate.quality), "notes": list(candidate.notes)}
    return candidate.cost.model_dump() | known


def _trial(trial: Trial) -> dict[str, Any]:
    known = {name: _estimate(getattr(trial, name)) for name in ("time", "quality", "loss")}
    return {"stack": trial.stack, "failure": trial.failure or None} | known


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    low, high = estimate.ends
    return {"ratio": math.exp(estimate.log), "low": finite(low), "high": finite(high), "source": estimate.source}
