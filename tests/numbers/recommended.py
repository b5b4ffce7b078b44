"""What ``leantrain recommend`` answers, beside a random search of equal cost: ``python -m tests.numbers.recommended``.

The search draws stacks of up to three entries that go together and fit, counted as the finalists of ``recommend`` are,
and gives as many minutes to the same successive halving in lock-step: so what is compared is the choice of finalists.
Then both answers and the recipe as it is are measured together once more. Wants an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from suite.entries.installed import baselines
from suite.judge.choice import Estimate, Member, spelled, stacks
from suite.measure.at_scale.paper_scale import Scale
from suite.measure.recommending.choose import Question
from suite.measure.recommending.costs import Counting
from suite.measure.recommending.finalists import MOST, Halving, MeasuredChoice
from suite.measure.recommending.members import members_for
from suite.measure.recommending.recommend import Recommendation, recommend
from suite.record.amounts import bytes_of
from suite.record.files import replacing
from suite.record.job import BASELINE, Setting
from suite.record.machine import busy_cores


def drawn(members: list[Member], counting: Counting, memory_bytes: float, seed: int) -> Iterator[tuple[str, float]]:
    """Stacks that fit, drawn evenly, each with its peak in bytes."""
    every = [spelled(each) for each in stacks(members)]
    random.Random(seed).shuffle(every)
    for stack in every:
        cost = counting.cost(stack)
        if not cost.why_not and cost.peak_bytes <= memory_bytes:
            yield stack, cost.peak_bytes


def halving(question: Question, peaks: dict[str, float], minutes: float, folder: Path) -> Halving:
    """Of finalists of which nothing but their peaks is known."""
    logs = {stack: math.log(peak / peaks[BASELINE]) for stack, peak in peaks.items()}
    return Halving(question.scale.setting, question.goal, BASELINE, logs, {}, minutes, folder)


def searched(question: Question, minutes: float, folder: Path, seed: int) -> MeasuredChoice:
    """The random search."""
    counting = Counting(question.scale)
    members = [each for each in members_for(question.scale.setting, folder, None) if not each.why_not]
    draws = drawn(members, counting, question.memory_bytes, seed)
    peaks = dict(next(draws) for _ in range(MOST))
    peaks[BASELINE] = counting.cost(BASELINE).peak_bytes
    finalists = [each for each in peaks if each != BASELINE]
    return halving(question, peaks, minutes, folder).measure(finalists, lambda _: [])


def together(question: Question, stacks: list[str], minutes: float, folder: Path) -> MeasuredChoice:
    counting = Counting(question.scale)
    peaks = {each: counting.cost(each).peak_bytes for each in (BASELINE, *stacks)}
    return halving(question, peaks, minutes, folder).measure(stacks, lambda _: [])


def said(estimate: Estimate | None) -> list[float] | None:
    """The cost ratio and its 95 % interval."""
    return None if estimate is None else [math.exp(estimate.log), *estimate.ends]


def compared(baseline: str, size: str, minutes: float, memory: str, folder: Path, seed: int) -> dict[str, Any]:
    scale = Scale(Setting(baseline=baseline, size=size))
    question = Question(scale, bytes_of(memory))
    start_s = time.monotonic()
    answer: Recommendation = recommend(question, folder, minutes)
    answered_s = time.monotonic() - start_s
    if answer.best is None or answer.measured is None:
        return {"baseline": baseline, "size": size, "unavailable": answer.why_unmeasured or "nothing fits"}
    theirs = searched(question, minutes, folder, seed)
    both = [each for each in dict.fromkeys((answer.best.stack, theirs.best)) if each != BASELINE]
    line: dict[str, Any] = {
        "baseline": baseline, "size": size, "minutes": minutes, "seed": seed, "busy_cores": busy_cores(),
        "recommended": answer.best.stack, "random": theirs.best, "answered_s": answered_s,
        "random_s": theirs.seconds,
    }  # fmt: skip
    if both:
        last = together(question, both, minutes, folder).rungs[-1]
        for name, stack, against in (
            ("recommended over the recipe", answer.best.stack, BASELINE),
            ("random over the recipe", theirs.best, BASELINE),
            ("recommended over random", answer.best.stack, theirs.best),
        ):
            known = [last.contribution(stack, against, each) for each in ("whole_time", "equivalent_budget")]
            line[name] = dict(zip(("time", "budget"), map(said, known)))
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.recommended", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-b", "--baseline", action="append", choices=sorted(baselines()), help="[gpt]")
    parser.add_argument("--size", default="nano")
    parser.add_argument("--minutes", type=float, default=10.0, help="of measuring, for each of the three parts")
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the records that recommend reads")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    chosen = parser.parse_args()
    lines = []
    for baseline in chosen.baseline or ["gpt"]:
        lines.append(compared(baseline, chosen.size, chosen.minutes, chosen.memory, chosen.results, chosen.seed))
        Console(highlight=False).print_json(json.dumps(lines[-1]))
    if chosen.write:
        with replacing(chosen.write) as file:
            file.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
