"""Gives the whole answer: what fits, in the order of the goal; then, where it can be measured here, what is best
here."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from suite.entries.setting import check_device
from suite.loop.technique import Unavailable
from suite.measure.provenance import Progress, portion, silent
from suite.record.job import BASELINE
from suite.topics.recommend.choice import Candidate, Estimate, StepCost, without_each
from suite.topics.recommend.choose import CountedChoice, Question, choose
from suite.topics.recommend.costs import Counting
from suite.topics.recommend.finalists import LEAST_STEPS, MOST, Halving, MeasuredChoice, Rung, Unmeasurable

FASTEST_CORE = 2e11  # FLOPs a second that no core of a CPU exceeds in float32
COUNTING = 0.3  # of the bar


@dataclass(frozen=True)
class Contribution:
    """Says what a member adds to the best stack, which is compared with what is left of it without.

    Attributes:
        without: what is left.
        cost: of that, counted.
        fits: whether that fits the memory; what does not is not run.
        peak: ln of the best stack's peak over that.
        time, quality: of the best stack over that: measured, or modelled; None where neither.
    """

    member: str
    without: str
    cost: StepCost
    fits: bool
    peak: float | None
    time: Estimate | None = None
    quality: Estimate | None = None


@dataclass(frozen=True)
class Recommendation:
    """Holds the answer, in which ``best`` is None where nothing fits. ``why_unmeasured``: why the answer is by counts
    and records alone."""

    choice: CountedChoice
    best: Candidate | None
    measured: MeasuredChoice | None = None
    why_unmeasured: str = ""
    contributions: tuple[Contribution, ...] = ()


def recommend(
    question: Question, folder: Path, minutes: float, *, run: bool = True, progress: Progress = silent
) -> Recommendation:
    """Returns the answer to a question, from the records of ``folder``, from counts, and, with ``run``, from at most
    about ``minutes`` of measuring. Raises what :func:`~suite.topics.recommend.choose.choose` does."""
    choice = choose(question, folder, portion(progress, 0.0, COUNTING if run else 1.0))
    if not choice.ranking.fitting:
        return Recommendation(choice, None)
    answer = _Answer(choice, Counting(question.scale, question.gpu))
    if not run:
        return answer.counted("measuring was not asked for")
    if why := _unmeasurable(choice, minutes):
        return answer.counted(why)
    halving = answer.halving(minutes, folder, portion(progress, COUNTING, 1.0))
    try:
        return answer.measured(halving.measure(answer.finalists(halving.reference), answer.remainders))
    except Unmeasurable as why_not:
        return answer.counted(str(why_not))


def _unmeasurable(choice: CountedChoice, minutes: float) -> str:
    """Tells why nothing can be measured here; empty where that is to be tried."""
    scale, plain = choice.question.scale, choice.plain
    setting = scale.setting
    try:
        check_device(setting.device)
    except Unavailable as missing:
        return str(missing)
    if scale.batch_size or scale.sequence_length:
        return "what is measured has the baseline's own batch and length: leave out --batch and --sequence-length"
    if not [candidate for candidate in choice.ranking.fitting if candidate.stack != BASELINE]:
        return "no stack is left to compare with the model as it is"
    if setting.device != "cpu":
        return ""
    needed = sum(candidate.cost.peak_bytes for candidate in choice.ranking.fitting[: MOST + 1])
    if needed > (free := _free_bytes()):
        return f"the finalists side by side hold {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free here"
    least_s = plain.flops * LEAST_STEPS * (MOST + 1) / (FASTEST_CORE * setting.threads)
    if least_s > 60 * minutes:
        return (
            f"{LEAST_STEPS} steps of {MOST + 1} sides take {least_s / 60:.3g} minutes of a core at the least, "
            f"{plain.flops / 1e12:.3g} TFLOP a step: give more --minutes, or measure where there is a GPU"
        )
    return ""


def _free_bytes() -> float:
    """Returns the memory that programs can have without swapping (proc_meminfo(5)); infinite where nobody says."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024 * float(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return math.inf


@dataclass
class _Answer:
    """Makes answers of a choice; costs of stacks that it has not are counted when they are asked for."""

    choice: CountedChoice
    counting: Counting
    costs: dict[str, StepCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranking = self.choice.ranking
        self.candidates = {candidate.stack: candidate for candidate in (*ranking.fitting, *ranking.too_large)}
        self.costs = {BASELINE: self.choice.plain} | {
            name: candidate.cost for name, candidate in self.candidates.items()
        }

    def cost(self, stack: str) -> StepCost:
        if stack not in self.costs:
            (self.costs[stack],) = self.counting.costs([stack])
        return self.costs[stack]

    def fits(self, stack: str) -> bool:
        cost = self.cost(stack)
        return not cost.why_not and cost.peak_bytes <= self.choice.question.memory_bytes

    def finalists(self, reference: str) -> list[str]:
        """Returns the most promising stacks, and the user's own that fit."""
        own = {name for name in self.choice.question.stacks if self.fits(name)}
        ranked = [candidate.stack for candidate in self.choice.ranking.fitting if candidate.stack != reference]
        first = [candidate for candidate in ranked if candidate not in own][: max(1, MOST - len(own))]
        return [candidate for candidate in ranked if candidate in own or candidate in first]

    def remainders(self, stack: str) -> list[str]:
        """Returns what is left of a stack without each of its members, where that fits."""
        return [remainder for remainder in without_each(stack).values() if self.fits(remainder)]

    def halving(self, minutes: float, folder: Path, progress: Progress) -> Halving:
        question, fitting = self.choice.question, self.choice.ranking.fitting
        reference = BASELINE if self.fits(BASELINE) else fitting[0].stack
        base = self.candidates[reference].time.log
        return Halving(
            question.scale.setting,
            question.goal,
            reference,
            {
                name: math.log(candidate.cost.peak_bytes / self.choice.plain.peak_bytes)
                for name, candidate in self.candidates.items()
            },
            {name: candidate.time.log - base for name, candidate in self.candidates.items()},
            minutes,
            folder,
            progress,
        )

    def counted(self, why: str) -> Recommendation:
        """Returns the answer by counts and records."""
        best = self.choice.ranking.fitting[0]
        return Recommendation(self.choice, best, None, why, self.contributions(best.stack, None))

    def measured(self, done: MeasuredChoice) -> Recommendation:
        """Returns the answer of the last rung."""
        best = self.candidates.get(done.best) or Candidate(done.best, self.cost(done.best))
        return Recommendation(self.choice, best, done, "", self.contributions(done.best, done))

    def contributions(self, best: str, done: MeasuredChoice | None) -> tuple[Contribution, ...]:
        own = self.cost(best)
        contributions = []
        for member, rest in without_each(best).items():
            cost = self.cost(rest)
            peak = None if cost.why_not else math.log(own.peak_bytes / cost.peak_bytes)
            time, quality = _measured(done.rungs[-1], best, rest) if done else (_modelled(own, cost), None)
            contributions.append(Contribution(member, rest, cost, self.fits(rest), peak, time, quality))
        return tuple(contributions)


def _measured(last: Rung, best: str, rest: str) -> tuple[Estimate | None, Estimate | None]:
    """Returns the time and the equivalent budget of the best stack over those of what is left."""
    return last.over(best, rest, "whole_time"), last.over(best, rest, "equivalent_budget")


def _modelled(own: StepCost, rest: StepCost) -> Estimate | None:
    """Returns the modelled step over that of what is left."""
    if own.step_s is None or rest.step_s is None:
        return None
    return Estimate(math.log(own.step_s / rest.step_s), source="modelled")
