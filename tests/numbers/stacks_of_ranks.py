"""Every entry of several ranks, stacked on what else people use: ``python -m tests.numbers.stacks_of_ranks``.

Each stack trains a few steps on real ranks, as ``leantrain run`` has them, and is evaluated. It trains, or one sentence
says what cannot be and what to do. Everything else is a fault: an error of a library's, a rank that waits for ever, a
sentence that blames the model, which each of the two trains alone. Where the update should be one process's,
how far the losses are from those of the partner alone stands beside it: a stack that trains as another one is not seen
by its errors.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from suite.entries.catalogue import catalogue, lookup
from suite.entries.installed import baselines
from suite.entries.spelling import build
from suite.measure.contenders.contender import Contender, ContenderFailed, Limits
from suite.measure.contenders.world import is_distributed, with_ranks
from suite.record.job import BASELINE, SIZES, Job, Setting, Size, StackError
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


def of_several_ranks() -> list[str]:
    """But for what shares parameters in one process."""
    categories = {each: entry.card.category for each, entry in catalogue().items()}
    return sorted(each for each in categories if categories[each] in OF_SEVERAL_RANKS and is_distributed(each))


def stacks(entries: list[str], partners: list[str], drawn: int | None, seed: int) -> list[tuple[str, str]]:
    """Each entry with each partner but itself, or with ``drawn`` of them, which are others for each entry and seed."""
    pairs = []
    for entry in entries:
        others = [partner for partner in partners if partner != entry]
        if drawn is not None:
            others = random.Random(f"{seed} {entry}").sample(others, min(drawn, len(others)))
        pairs += [(entry, partner) for partner in others]
    return pairs


def spelled(entry: str, partner: str, ranks: int, partner_first: bool) -> str:
    own = str(with_ranks(entry, ranks))
    both = [partner, own] if partner_first else [own, partner]
    return "+".join(each for each in both if each != BASELINE)


def wider(setting: Setting, ranks: int) -> tuple[Setting, str]:
    """The setting, and what stands first in a stack, so that the baseline's batch divides among so many ranks: it is
    ``ranks`` times as large, at the same rate, for as many steps."""
    if baselines()[setting.baseline].recipe_of(setting).batch_size % ranks == 0:
        return setting, ""
    return setting.but(steps=ranks * (setting.steps or 0)), f"linear_scaling_warmup:k={ranks},rule=none+"


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


def checked_partner(text: str) -> str:
    """A stack of one process. Raises ArgumentTypeError for what is none."""
    try:
        build(text)
        distributed = is_distributed(text)
    except (StackError, LookupError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if distributed:
        raise argparse.ArgumentTypeError(f"{text} trains on several ranks itself: name it as an entry")
    return text


def checked_entry(text: str) -> str:
    """Raises ArgumentTypeError for what is no entry of several ranks."""
    try:
        lookup("entry of several ranks", text, {name: name for name in of_several_ranks()})
    except LookupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def at_least(least: int, what: str) -> Callable[[str], int]:
    """Reads a whole number. It raises ArgumentTypeError for another text and for less."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{what} are a whole number of {least} or more, not {text!r}")
        return int(text)

    return number


def asked(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.stacks_of_ranks", description=(__doc__ or "").split("\n")[0], allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "entries", nargs="*", type=checked_entry, metavar="entry", help="Those of several ranks to try; all by default."
    )
    add(
        "-p",
        "--partners",
        nargs="+",
        type=checked_partner,
        default=list(PARTNERS),
        metavar="STACK",
        help="What each is stacked on; baseline is nothing.",
    )
    add("-b", "--baseline", choices=list(baselines()), default="gpt", help="The model and its data.")
    add("--size", choices=SIZES, default="pico", help="Of the baseline; of two blocks no three ranks make a pipeline.")
    add("--ranks", type=at_least(2, "ranks"), default=2, metavar="N", help="Processes that train one model.")
    add("--reversed", action="store_true", help="The partner stands first.")
    add("--draw", type=at_least(1, "partners drawn"), metavar="N", help="Only N partners for each entry, at random.")
    add("--seed", type=at_least(0, "seeds"), default=0, metavar="N", help="Of what is drawn.")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = asked()
    setting = Setting(baseline=chosen.baseline, size=cast(Size, chosen.size), recipe="classic", steps=2 * STEPS)
    setting, first = wider(setting, chosen.ranks)
    alone: dict[str, list[float] | None] = {}
    tally = Counter[str]()
    for entry, partner in stacks(chosen.entries or of_several_ranks(), chosen.partners, chosen.draw, chosen.seed):
        if partner not in alone:
            try:
                alone[partner] = losses_of(first + partner if partner != BASELINE else first.rstrip("+"), setting)
            except (ContenderFailed, StackError) as error:
                alone[partner] = None
                print(f"left out: {partner} does not train alone: {error}", flush=True)
        if (expected := alone[partner]) is None:
            continue
        stack = first + spelled(entry, partner, chosen.ranks, chosen.reversed)
        found = outcome(stack, setting, expected)
        tally[found.kind] += 1
        print(f"{found.kind:10} {stack}: {found.words}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(tally.items())))


if __name__ == "__main__":
    main()
