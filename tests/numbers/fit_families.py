"""What ``leantrain.fit`` does on many families of models: ``python -m tests.numbers.fit_families [-m llama mamba]``.

Each family of ``tests/leantrain/families.py`` is fitted within three budgets: the least that is accepted, the middle
between it and a plain pass, and no limit to speak of. In each, a pass is compared to the bit with a plain one from the
same random state (loss, gradients, buffers), and its peak is measured. A family works where it does within all three,
refuses where it says so in a sentence, and is silent where a pass differs and nobody says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from leantrain.fitting import Fitted, fit
from suite.meters.tensors import TensorBytes
from tests.leantrain.families import FAMILIES, Batch, loss_of, seeded

Word = Literal["works", "refuses", "over budget", "crashes", "silent"]
WORDS: tuple[Word, ...] = ("works", "refuses", "over budget", "crashes", "silent")  # the worst is the last
Tensors = dict[str, Tensor | None]
UNLIMITED_BYTES = 64 * 10**9
NAMED = re.compile(r"its least is ([\d.]+) (\w+)")
UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
MOST_REFUSALS = 25
SEED = 3


@dataclass
class Outcome:
    """Of a family within a budget; ``says`` is a refusal's sentence, or where it crashed.

    ``differing`` of ``compared`` tensors are not a plain pass's, by ``worst`` of the largest number in one at most.
    """

    word: Word
    budget_bytes: int
    says: str = ""
    peak_bytes: int = 0
    predicted_bytes: int = 0
    extra_time: float = 0.0
    recomputed: int = 0
    blocks: int = 0
    compared: int = 0
    differing: int = 0
    worst: float = 0.0


@dataclass
class Row:
    """A family, with its outcomes by the budget's name; ``named_bytes``: the least of them by the first refusal."""

    family: str
    named_bytes: int = 0
    parameters: int = 0
    plain_step_s: float = 0.0
    seconds: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def word(self) -> Word:
        """The worst of its outcomes'."""
        return max((each.word for each in self.outcomes.values()), key=WORDS.index)


# one pass -------------------------------------------------------------------------------------------------------------


def passed(model: nn.Module, batch: Batch) -> Tensors:
    """A pass's loss, gradients, and the buffers after it."""
    seeded(SEED)
    loss = loss_of(model, batch)
    loss.backward()
    return {
        "loss": loss.detach(),
        **{f"gradient of {name}": each.grad for name, each in model.named_parameters()},
        **{f"buffer {name}": each.clone() for name, each in model.named_buffers()},
    }


def measured(model: nn.Module, batch: Batch) -> int:
    """Most bytes alive in a pass."""
    model.zero_grad()
    seeded(SEED)
    with TensorBytes().seed(model, None, batch) as meter:
        loss_of(model, batch).backward()
    return meter.peak_bytes


def differences(ours: Tensors, theirs: Tensors) -> Iterator[float]:
    """Of each tensor that differs, by how much, beside the plain one's largest number."""
    for name, plain in theirs.items():
        other = ours[name]
        if plain is None or other is None:
            if plain is not other:
                yield float("inf")
        elif not torch.equal(plain, other):
            most = plain.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
            yield ((plain - other).abs().max() / most).item()


# one family -----------------------------------------------------------------------------------------------------------


def least(model: nn.Module, batch: Batch, budget: int) -> tuple[int, int]:
    """The least budget that is accepted, to 2% where refusals name too small a one; and what the first one names."""
    first = 0
    for _ in range(MOST_REFUSALS):
        try:
            fit(model, batch, loss_of, f"{budget}B")
            break
        except ValueError as refusal:
            named = NAMED.search(str(refusal))
            if not named:  # refused for another reason, which is said where the pass is tried
                break
            budget = ceil(max(float(named[1]) * UNITS[named[2]] * 1.001, budget * 1.02 if first else 0))
            first = first or budget  # it is said in four digits
    return budget, first


def crashed(budget: int, error: Exception) -> Outcome:
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).splitlines()[:1]
    return Outcome("crashes", budget, f"{type(error).__name__}: {' '.join(first)} ({last.filename}:{last.lineno})")


def within(family: str, budget: int, plain: Tensors) -> Outcome:
    """A new model of this family within a budget."""
    try:
        model, batch = FAMILIES[family]()
        try:
            fitted = fit(model, batch, loss_of, f"{budget}B")
        except ValueError as refusal:
            if "\n" in str(refusal):
                raise
            return Outcome("refuses", budget, str(refusal))
        with fitted.step():
            ours = passed(model, batch)
        outcome = _compared(fitted, list(differences(ours, plain)), len(plain))
        del ours
        with fitted.step():
            outcome.peak_bytes = measured(model, batch)
    except Exception as error:
        return crashed(budget, error)
    if outcome.peak_bytes > budget and outcome.word == "works":
        outcome.word = "over budget"
    return outcome


def _compared(fitted: Fitted, found: list[float], compared: int) -> Outcome:
    plan = fitted.plan
    return Outcome(
        "silent" if found else "works",
        fitted.memory_bytes,
        predicted_bytes=plan.peak_bytes,
        extra_time=plan.extra_time,
        recomputed=plan.recomputed,
        blocks=plan.blocks,
        compared=compared,
        differing=len(found),
        worst=max(found, default=0.0),
    )


def tried(family: str) -> Row:
    """A family within the three budgets, the largest first; one that fails there is not tried within others."""
    row, start_s = Row(family), time.perf_counter()
    try:
        model, batch = FAMILIES[family]()
        row.parameters = sum(each.numel() for each in model.parameters())
        begun_s = time.perf_counter()
        plain = passed(model, batch)
        row.plain_step_s = time.perf_counter() - begun_s
        row.outcomes["no limit"] = within(family, UNLIMITED_BYTES, plain)
        if row.word in ("works", "silent"):
            model, batch = FAMILIES[family]()
            plan = fit(model, batch, loss_of, f"{UNLIMITED_BYTES}B", verify=False).plan
            low, row.named_bytes = least(model, batch, plan.resident_bytes)
            row.outcomes["least"] = within(family, low, plain)
            row.outcomes["middle"] = within(family, (low + max(low, plan.peak_bytes)) // 2, plain)
    except Exception as error:
        row.outcomes["no limit"] = crashed(UNLIMITED_BYTES, error)
    row.seconds = time.perf_counter() - start_s
    gc.collect()
    return row


# all of them ----------------------------------------------------------------------------------------------------------


def line(row: Row) -> list[str]:
    """A row of the table; where a family is not tried within the least budget, without what it has there."""
    tightest = row.outcomes.get("least")
    shown = tightest or row.outcomes["no limit"]
    words = [row.outcomes[name].word if name in row.outcomes else "" for name in ("least", "middle", "no limit")]
    limited = [row.outcomes[name] for name in ("least", "middle") if name in row.outcomes]
    shares = [f"{each.peak_bytes / each.budget_bytes:.3f}" for each in limited if each.peak_bytes]
    again = [str(tightest.recomputed), f"{tightest.extra_time:.0%}"] if tightest else ["", ""]
    blocks = str(shown.blocks or "")
    return [row.family, blocks, again[0], *words, " ".join(shares), again[1], f"{row.seconds:.1f}"]


def reasons(row: Row) -> Iterator[str]:
    """What is to be said of outcomes that are not as they should be, each once."""
    said: set[str] = set()
    tightest = row.outcomes.get("least")
    if tightest and tightest.budget_bytes > row.named_bytes > 0:
        yield f"{row.family}: the least is {tightest.budget_bytes} bytes, where a refusal names {row.named_bytes}"
    for name, each in row.outcomes.items():
        reason = each.says or f"{each.differing} of {each.compared} tensors differ, by {each.worst:.1e} at most"
        reason = f"a peak of {each.peak_bytes} in {each.budget_bytes}" if each.word == "over budget" else reason
        if each.word != "works" and reason not in said:
            said.add(reason)
            yield f"{row.family}, {name}: {each.word}: {reason}"


def summary(rows: list[Row]) -> str:
    counts = Counter(row.word for row in rows)
    return f"{len(rows)} families: {', '.join(f'{counts[word]} {word}' for word in WORDS)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.fit_families", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-m", "--models", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    console = Console(width=160, highlight=False, soft_wrap=True)
    rows: list[Row] = []
    for name in chosen.models:
        rows.append(tried(name))
        console.print(f"{len(rows)} of {len(chosen.models)}: {name} {rows[-1].word}, {rows[-1].seconds:.1f} s")
        if chosen.json:
            said: list[dict[str, Any]] = [{**asdict(row), "word": row.word} for row in rows]
            chosen.json.write_text(json.dumps(said, indent=1) + "\n")
    heads = ("family", "blocks", "run again", "least", "middle", "no limit", "peak / budget", "more time", "s")
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*line(row))
    console.print(table)
    for row in rows:
        for reason in reasons(row):
            console.print(reason, markup=False)
    console.print(summary(rows))


if __name__ == "__main__":
    main()
