"""Every entry of several ranks, stacked on what else people use: ``python -m tests.numbers.stacks_of_ranks``.

Each stack trains a few steps on real ranks, as ``leantrain run`` has them, and is evaluated. It trains, or one sentence
says what cannot be and what to do. Everything else is a fault: an error of a library's, a rank that waits for ever, a
sentence that blames the model, which each of the two trains alone. Where the update should be one process's,
how far the losses are from those of the partner alone stands beside it: a stack that trains as another one is not seen
by its errors.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from suite.entries.catalogue import catalogue
from suite.entries.spelling import build
from suite.measure.contenders.contender import Contender, ContenderFailed, Limits
from suite.record.job import Job, Setting, StackError
from tests.runs import OF_SEVERAL_RANKS

PARTNERS = (
    "lora",
    "adapter_houlsby",
    "bitfit",
    "adam4bit_rank1",
    "albert_sharing",
    "rezero",
    "ckpt_chen_sqrt",
    "sam",
    "amp_bf16",
    "lion",
    "is_gradnorm",
    "elsa",
)
STEPS = 4
LIMITS = Limits(train_s=60.0, reply_s=60.0)
OURS = tuple(f"{Path(__file__).parents[2] / folder}/" for folder in ("suite", "techniques", "baselines"))
UNMEANT = re.compile(r"(rank \d+: )?(Runtime|Key|Index|Type|Attribute|Assertion|ZeroDivision|NotImplemented)Error\b")
BLAMES_THE_MODEL = re.compile(r"(take|use|choose) another model|a deeper model|no Transformer blocks")


class Outcome(NamedTuple):
    """How a stack ended: ``kind`` is trains, refused, misleading or raw; ``words`` are its sentence, or its losses'."""

    kind: str
    words: str


def stacks(entries: list[str], partners: list[str]) -> list[tuple[str, str]]:
    return [(entry, partner) for entry in entries for partner in partners if entry != partner]


def of_several_ranks() -> list[str]:
    return sorted(each for each, entry in catalogue().items() if entry.card.category in OF_SEVERAL_RANKS)


def losses_of(stack: str, setting: Setting) -> list[float]:
    """Of a run's first steps. Raises ContenderFailed and StackError."""
    fine_tuned = any(catalogue()[name].card.category == "fine_tuning" for name in build(stack).techniques)
    setting = setting.but(task="adapt" if fine_tuned else "pretrain")
    with Contender(Job(setting=setting, stack=stack), LIMITS) as contender:
        contender.prepare(weights=False)
        contender.set_up()
        losses = contender.block(STEPS).losses
        contender.evaluate("validation", STEPS)
        contender.probes()
    return losses


def kind_of(failed: ContenderFailed) -> str:
    """Whether what a run ended with tells its user what to do: it was raised here on purpose, and blames no model."""
    raised = re.findall(r'File "(.+?)", line', failed.details)
    ours = not raised or (raised[-1].startswith(OURS) and not UNMEANT.match(failed.reason))
    if failed.status in ("hung", "crashed") or not ours:
        return "raw"
    return "misleading" if BLAMES_THE_MODEL.search(failed.reason) else "refused"


def outcome(stack: str, setting: Setting, alone: list[float]) -> Outcome:
    try:
        losses = losses_of(stack, setting)
    except ContenderFailed as failed:
        return Outcome(kind_of(failed), failed.reason)
    except StackError as error:
        return Outcome("refused", str(error))
    apart = max(abs(one / other - 1) for one, other in zip(losses, alone, strict=True))
    return Outcome("trains", f"losses within {apart:.1g} of the partner's alone")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.stacks_of_ranks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("entries", nargs="*", default=[], metavar="entry")
    parser.add_argument("--partners", nargs="+", default=PARTNERS)
    parser.add_argument("-b", "--baseline", default="gpt")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--reversed", action="store_true", help="the partner first")
    chosen = parser.parse_args()
    setting = Setting(baseline=chosen.baseline, size="pico", recipe="classic", steps=2 * STEPS)
    alone: dict[str, list[float] | None] = {}
    tally: dict[str, int] = {}
    for entry, partner in stacks(chosen.entries or of_several_ranks(), list(chosen.partners)):
        if partner not in alone:
            try:
                alone[partner] = losses_of(partner, setting)
            except (ContenderFailed, StackError) as error:
                alone[partner] = None
                print(f"left out: {partner} does not train alone: {error}", flush=True)
        if alone[partner] is None:
            continue
        own = entry if chosen.ranks == 2 else f"{entry}:ranks={chosen.ranks}"
        stack = f"{partner}+{own}" if chosen.reversed else f"{own}+{partner}"
        found = outcome(stack, setting, alone[partner])
        tally[found.kind] = tally.get(found.kind, 0) + 1
        print(f"{found.kind:10} {stack}: {found.words}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(tally.items())))


if __name__ == "__main__":
    main()
