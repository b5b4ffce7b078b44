"""What ``leantrain recommend`` answers, beside a random search of equal cost: ``python -m tests.numbers.recommended``.

The search draws stacks of up to three entries that go together and fit, counted as the finalists of ``recommend`` are,
and gives as many minutes to the same successive halving in lock-step: so what is compared is the choice of finalists.
Then both answers and the recipe as it is are measured together, three seeds and sets of processes each, at a larger
size (``--last-size``), beside a scaling curve of the recipe there, so that time to the same quality can be said. Wants
an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from suite.entries.installed import baselines
from suite.judge.rows import pairs
from suite.judge.ruler import steps_at
from suite.measure.at_scale.full_size import Scale
from suite.measure.learning import learn_all
from suite.measure.provenance import conditions_of
from suite.record.amounts import bytes_of
from suite.record.files import replacing
from suite.record.job import BASELINE, Job, Setting
from suite.record.machine import busy_cores
from suite.record.store import Records
from suite.topics.recommend.choice import Estimate, Member, StepCost, spelled, stacks, together
from suite.topics.recommend.choose import Question
from suite.topics.recommend.costs import Counting
from suite.topics.recommend.finalists import MOST, Halving, MeasuredChoice, Rung
from suite.topics.recommend.members import members_for
from suite.topics.recommend.whole_answer import Recommendation, recommend

CURVE = (0.5, 0.7, 1.4)  # of the steps of the last comparison, which the recipe learns beside them


def drawn(members: list[Member], counting: Counting, memory_bytes: float, seed: int) -> Iterator[tuple[str, StepCost]]:
    """Stacks that fit, drawn evenly, each with its cost."""
    every = [spelled(each) for each in stacks(members)]
    random.Random(seed).shuffle(every)
    for stack in every:
        cost = counting.cost(stack)
        if not cost.why_not and cost.peak_bytes <= memory_bytes:
            yield stack, cost


def halving(question: Question, costs: dict[str, StepCost], minutes: float, folder: Path) -> Halving:
    """Of finalists of which nothing but their counts is known."""
    plain = costs[BASELINE]
    peaks = {stack: math.log(cost.peak_bytes / plain.peak_bytes) for stack, cost in costs.items()}
    expected = {stack: math.log(cost.flops / plain.flops) for stack, cost in costs.items()}
    return Halving(question.scale.setting, question.goal, BASELINE, peaks, expected, minutes, folder)


def searched(question: Question, minutes: float, folder: Path, seed: int) -> MeasuredChoice:
    """The random search."""
    counting = Counting(question.scale)
    members = [each for each in members_for(question.scale.setting, folder, None) if not each.why_not]
    draws = drawn(members, counting, question.memory_bytes, seed)
    finalists = dict(next(draws) for _ in range(MOST))
    costs = finalists | {BASELINE: counting.cost(BASELINE)}
    return halving(question, costs, minutes, folder).measure(list(finalists), lambda _: [])


def measured_together(question: Question, stacks: list[str], minutes: float, folder: Path) -> Rung:
    """The stacks beside the recipe, read off a scaling curve of it that is learned at the same size and length."""
    counting = Counting(question.scale)
    last = halving(question, {each: counting.cost(each) for each in (BASELINE, *stacks)}, minutes, folder)
    (rung,) = last.measure(stacks, lambda _: []).rungs
    setting = question.scale.setting.but(steps=rung.steps)
    lengths = [setting.but(steps=steps_at(share, rung.steps)) for share in CURVE]
    jobs = [Job(setting=length, seed=seed) for seed in range(2) for length in lengths]
    last.lines += [learned for _, learned in learn_all(jobs)]
    rows = pairs(Records.of(last.lines), lambda _: BASELINE, tuned=lambda _: False, wanted=stacks.__contains__)
    here = conditions_of(setting).key
    return replace(rung, rows={row.stack: row for row in rows if row.conditions.key == here and row.known.timed})


def said(estimate: Estimate | None) -> list[float] | None:
    """The cost ratio and its 95 % interval."""
    return None if estimate is None else [math.exp(estimate.log), *estimate.ends]


def compared(baseline: str, chosen: argparse.Namespace) -> dict[str, Any]:
    size, last_size, minutes, folder, seed = (
        chosen.size,
        chosen.last_size,
        chosen.minutes,
        chosen.results,
        chosen.seed,
    )
    question = Question(Scale(Setting(baseline=baseline, size=size)), bytes_of(chosen.memory))
    larger = replace(question, scale=Scale(Setting(baseline=baseline, size=last_size)))
    start_s = time.monotonic()
    answer: Recommendation = recommend(question, folder, minutes)
    answered_s = time.monotonic() - start_s
    if answer.best is None or answer.measured is None:
        return {"baseline": baseline, "size": size, "unavailable": answer.why_unmeasured or "nothing fits"}
    theirs = searched(question, minutes, folder, seed)
    both = [each for each in dict.fromkeys((answer.best.stack, theirs.best)) if each != BASELINE]
    line: dict[str, Any] = {
        "baseline": baseline,
        "size": size,
        "minutes": minutes,
        "seed": seed,
        "busy_cores": busy_cores(),
        "recommended": answer.best.stack,
        "random": theirs.best,
        "answered_s": answered_s,
        "random_s": theirs.seconds,
        "cut_short": [answer.measured.cut_short, theirs.cut_short],
    }
    if both:
        rung = measured_together(larger, both, chosen.last_minutes, folder)
        line |= {"last size": last_size, "steps": rung.steps, "of": conditions_of(larger.scale.setting).steps}
        for name, stack, against in (
            ("recommended over the recipe", answer.best.stack, BASELINE),
            ("random over the recipe", theirs.best, BASELINE),
            ("recommended over random", answer.best.stack, theirs.best),
        ):
            time_and_budget = [rung.over(stack, against, each) for each in ("whole_time", "equivalent_budget")]
            known = [each for each in time_and_budget if each is not None]
            line[name] = {
                "time": said(time_and_budget[0]),
                "loss": said(rung.over(stack, against, "loss")),
                "time to the same quality": said(together(known)) if len(known) == 2 else None,
            }
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.recommended", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-b", "--baseline", action="append", choices=sorted(baselines()), help="[gpt]")
    parser.add_argument("--size", default="nano", help="at which recommend and the search measure")
    parser.add_argument("--last-size", default="micro", help="at which their answers are held against the recipe")
    parser.add_argument("--minutes", type=float, default=10.0, help="of measuring, for recommend and for the search")
    parser.add_argument("--last-minutes", type=float, default=10.0, help="of measuring their answers, beside the curve")
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the records that recommend reads")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    chosen = parser.parse_args()
    lines = []
    for baseline in chosen.baseline or ["gpt"]:
        lines.append(compared(baseline, chosen))
        Console(highlight=False).print_json(json.dumps(lines[-1]))
    if chosen.write:
        with replacing(chosen.write) as file:
            file.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
