"""What the entries that swap attention do on many families of models: ``python -m tests.numbers.attached [-m gemma2]``.

Each entry is applied to a model of each family (``tests/leantrain/families.py``), as a user applies it, and where that
is accepted one step is taken and one batch evaluated. It works, or is refused as it is applied, in one sentence, and
the model's outputs, attributes and hooks are what they were. All else counts against it: an error that is no sentence
(raw), one that comes once it was applied (late), and a refused model that is not as it was (changed). Whether a
sentence misleads is read: each is printed once, with who got it.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from leantrain.applying import Applied, apply
from suite.entries.catalogue import catalogue
from suite.model.anatomy import anatomy
from suite.model.calls import undisturbed
from tests.leantrain.families import FAMILIES, Batch, loss_of, seeded

THIRTEEN = (
    "bert",
    "deberta_v1",
    "modernbert",
    "gpt2",
    "llama",
    "gemma2",
    "gpt_oss",
    "t5",
    "bart",
    "whisper",
    "vit",
    "swinv2_timm",
    "xcit_timm",
)
LONGEST = 400  # characters of a sentence
Word = Literal["works", "refused", "late", "changed", "raw"]
WORDS: tuple[Word, ...] = ("works", "refused", "late", "changed", "raw")


class Outcome(NamedTuple):
    """``says``: the sentence, or the error."""

    word: Word
    says: str = ""


def entries() -> list[str]:
    """Those of the category attention."""
    return [name for name, entry in catalogue().items() if entry.card.category == "attention"]


def looks(model: nn.Module, batch: Batch) -> tuple[list[Tensor], list[Any]]:
    """The model's loss and gradients, and of each module its class, forward, hooks and settings of attention."""
    with undisturbed(model):
        seeded(5)
        loss = loss_of(model, batch)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    modules = [
        (
            type(m),
            m.training,
            "forward" in vars(m),
            len(m._forward_hooks),
            len(m._forward_pre_hooks),
            len(m._parameters),
            len(m._buffers),
            getattr(getattr(m, "config", None), "_attn_implementation", None),
        )
        for m in model.modules()
    ]
    return [loss.detach(), *(each for each in gradients if each is not None)], modules


def applied_to(model: nn.Module, batch: Batch, entry: str) -> Applied:
    if "classes" in batch:
        return apply(model, entry, batch=tuple(batch.values()), steps=10)
    return apply(model, entry, batch=batch, loss=loss_of, steps=10)


def used(applied: Applied, batch: Batch) -> None:
    """A step, and a batch of the evaluated model."""
    model, optimizer, context = applied
    given = tuple(batch.values()) if "classes" in batch else batch
    with context.step(given):
        loss = loss_of(model, batch)
        if context.run.adding_terms():
            loss = context.loss(loss, None, given)
        loss.backward()
        optimizer.step()
    with context.evaluated() as evaluated:
        loss_of(evaluated, batch)


def outcome(family: str, entry: str) -> Outcome:
    model, batch = FAMILIES[family]()
    before, modules = looks(model, batch)
    try:
        applied = applied_to(model, batch, entry)
    except Exception as error:
        says = str(error)
        if not isinstance(error, ValueError) or "\n" in says or not 20 < len(says) <= LONGEST:
            return Outcome("raw", f"{type(error).__name__}: {says}")
        after, now = looks(model, batch)
        same = len(after) == len(before) and all(map(torch.equal, after, before)) and now == modules
        return Outcome("refused" if same else "changed", says)
    try:
        seeded(1)
        used(applied, batch)
    except Exception as error:
        return Outcome("late", f"{type(error).__name__}: {error}")
    return Outcome("works")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.attached", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-m", "--models", nargs="+", choices=list(FAMILIES), default=THIRTEEN, metavar="NAME")
    parser.add_argument("--all", action="store_true", help="Every family with blocks of Transformers.")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console(width=160, highlight=False, soft_wrap=True)
    names, said, counts = entries(), {}, Counter[Word]()
    table = Table("family", *names, box=None, pad_edge=False)
    for family in FAMILIES if chosen.all else chosen.models:
        if chosen.all and not has_blocks(family):
            continue
        found = {name: outcome(family, name) for name in names}
        counts.update(each.word for each in found.values())
        table.add_row(family, *(each.word for each in found.values()))
        for name, each in found.items():
            if each.says:
                said.setdefault((each.word, each.says), []).append(f"{name} on {family}")
    console.print(table)
    for (word, says), who in said.items():
        console.print(f"{word}: {says}\n    {', '.join(who)}", markup=False)
    console.print(", ".join(f"{counts[word]} {word}" for word in WORDS))


def has_blocks(family: str) -> bool:
    try:
        return bool(anatomy(FAMILIES[family]()[0]).stacks)
    except ValueError:
        return False


if __name__ == "__main__":
    main()
