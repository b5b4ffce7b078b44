"""``leantrain.fit`` beside torch's ways to recompute: ``python -m tests.numbers.fit_beside_others [--write fit.svg]``.

Step time at measured peak memory, of a Llama on one thread: fit in ten budgets between its least and a plain pass's;
torch.compile with ten of torch's activation memory budgets; torch.utils.checkpoint around every block; transformers'
own flag, as Trainer sets it. A step is a forward and a backward pass. In every round each method takes one step, in
random order, and its time is that over the plain step of the same round.

Peaks are of the allocator's events, which torch's profiler keeps: bytes of weights, gradients and batch are in them,
and what compiled code allocates is, too. On the plain pass they are compared with those of
:class:`suite.meters.tensors.TensorBytes`. A first run compiles for minutes, the next one finds that in torch's cache.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import leantrain
from suite.judge.statistics import median_interval
from suite.meters.storage import unique_bytes
from suite.meters.tensors import TensorBytes
from suite.show.pages.labels import LETTER, Labels, point_box
from suite.show.pictures.axes import Axis, Frame
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, MarkGroup, Words, check_format, save

BUDGETS = 10  # of fit
AS_MUCH = 1.01  # of a peak, within which another is as high
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # torch's budgets
PLAIN, FIT, COMPILED = "plain", "leantrain.fit", "torch.compile, activation_memory_budget"
CHECKPOINTED, FLAG = "torch.utils.checkpoint, every block", "transformers, gradient_checkpointing"
NAMES = {PLAIN: "plain, eager", CHECKPOINTED: "torch.utils.checkpoint", FLAG: "gradient_checkpointing"}  # in the plot
INKS = {FIT: "technique", COMPILED: "worse"}
EXAMPLES, TOKENS, VOCABULARY, HIDDEN = 4, 256, 256, 128
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Method:
    """A way to take a step, on a model of its own.

    Attributes:
        budget: bytes of fit, a share of torch.
        around: a context of each step.
        plan: what fit foretells.
    """

    name: str
    model: nn.Module
    run: Callable[..., Any]
    budget: float | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    plan: Any = None

    def step(self, batch: Batch) -> None:
        with self.around():
            loss(self.run, batch).backward()


@dataclass(frozen=True)
class Measured:
    """A method's cost: peak bytes of a step, and its time over a plain one's with the interval of that median."""

    method: str
    budget: float | None
    peak_bytes: int
    time: float
    low: float
    high: float
    foretold_bytes: int | None = None
    recomputed: int | None = None
    blocks: int | None = None

    @property
    def budget_words(self) -> str:
        if self.budget is None:
            return ""
        return megabytes(self.budget) if self.method == FIT else f"{self.budget:g}"


def loss(model: Callable[..., Any], batch: Batch) -> Tensor:
    value: Tensor = model(**batch).loss
    return value


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB"


# methods ------------------------------------------------------------------------------------------------------------


def llama(blocks: int) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        intermediate_size=HIDDEN * 43 // 16,
        max_position_embeddings=TOKENS,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).train()


def methods(model: transformers.LlamaForCausalLM, batch: Batch, backend: str) -> Iterator[Method]:
    """The plain pass first."""
    yield Method(PLAIN, model, model)
    yield from fits(model, batch)
    for share in SHARES:
        own = copy.deepcopy(model)
        yield Method(COMPILED, own, torch.compile(own, backend=partitioned(share, backend)), share)
    own = copy.deepcopy(model)
    for block in own.model.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    yield Method(CHECKPOINTED, own, own)
    own = copy.deepcopy(model)
    getattr(own, "activation_checkpointing_enable", own.gradient_checkpointing_enable)()  # its name in v6
    yield Method(FLAG, own, own)


def fits(model: nn.Module, batch: Batch) -> Iterator[Method]:
    """In even budgets from the least to a plain pass's."""
    roomy = leantrain.fit(model, batch, loss, memory="1TB").plan
    least = least_bytes(model, batch, roomy.resident_bytes)
    for number in range(BUDGETS):
        budget = least + (roomy.plain_peak_bytes - least) * number // (BUDGETS - 1)
        own = copy.deepcopy(model)
        fitted = leantrain.fit(own, batch, loss, memory=f"{budget}B", seconds="clocked")
        yield Method(FIT, own, own, budget, fitted.step, fitted.plan)


def least_bytes(model: nn.Module, batch: Batch, too_few: int) -> int:
    """Of the refusal's four digits, rounded up."""
    try:
        leantrain.fit(model, batch, loss, memory=f"{too_few}B")
    except ValueError as refusal:
        amount, unit = str(refusal).split("its least is ")[1].split(",")[0].split(" ")
        return int(float(amount) * 1.001 * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit])
    raise SystemExit(f"fit met a budget of {too_few} bytes, which a pass takes before it begins")


def partitioned(share: float, backend: str) -> Callable[..., Any]:
    """The backend within torch's budget. As each is a function of its own, no compiled code is taken for another's."""
    compiler = torch._dynamo.lookup_backend(backend)

    def compiled(graph: Any, inputs: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=share):
            return compiler(graph, inputs)

    return compiled


# measured -----------------------------------------------------------------------------------------------------------


def peak_bytes(method: Method, batch: Batch) -> int:
    """Most bytes in a step that finds no gradients, of what the allocator reports and of what was there before.

    A profile sees no end of what began before it, nor the other way round: all that a step makes ends in here.
    """
    there = unique_bytes([*method.model.parameters(), *method.model.buffers(), *batch.values()])
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        method.step(batch)
        method.model.zero_grad()
        gc.collect()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = high = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        high = max(high, now)
    if now or not events:
        raise SystemExit(f"{method.name}: {now} bytes of a step are left after it, so that its peak is not known")
    return there + high


def tensor_bytes(method: Method, batch: Batch) -> int:
    with TensorBytes().seed(method.model, None, batch) as meter:
        method.step(batch)
    method.model.zero_grad()
    return meter.peak_bytes


def warmed(method: Method, batch: Batch) -> list[Tensor]:
    """Takes two steps, of which the first may compile; gives the gradients."""
    for _ in range(2):
        method.model.zero_grad()
        method.step(batch)
    gradients = [each.grad.clone() for each in method.model.parameters() if each.grad is not None]
    method.model.zero_grad()
    return gradients


def seconds(method: Method, batch: Batch) -> float:
    start_s = time.process_time()
    method.step(batch)
    taken_s = time.process_time() - start_s
    method.model.zero_grad()
    return taken_s


def log_ratios(among: Sequence[Method], batch: Batch, rounds: int) -> tuple[list[list[float]], float]:
    """Of each method over the first, in every round, and the first one's median of seconds."""
    draw, order = random.Random(0), list(range(len(among)))
    taken: list[list[float]] = [[] for _ in among]
    for _ in range(rounds):
        draw.shuffle(order)
        for each in order:
            taken[each].append(seconds(among[each], batch))
    logs = [[math.log(ours / plain) for ours, plain in zip(each, taken[0], strict=True)] for each in taken]
    return logs, sorted(taken[0])[rounds // 2]


def measured(among: Sequence[Method], peaks: Sequence[int], logs: Sequence[Sequence[float]]) -> list[Measured]:
    rows = []
    for method, peak, each in zip(among, peaks, logs, strict=True):
        interval, plan = median_interval(each).ratio(), method.plan
        foretold = (plan.peak_bytes, plan.recomputed, plan.blocks) if plan else (None, None, None)
        rows.append(
            Measured(method.name, method.budget, peak, interval.estimate, interval.low, interval.high, *foretold)
        )
    return rows


def of(rows: Sequence[Measured], name: str) -> list[Measured]:
    return [each for each in rows if each.method == name]


def monotone(rows: Sequence[Measured]) -> str:
    """Whether a larger budget has a lower peak, in words."""
    falls = [
        f"{one.budget_words} -> {megabytes(one.peak_bytes)}, {other.budget_words} -> {megabytes(other.peak_bytes)}"
        for one, other in pairwise(rows)
        if other.peak_bytes < one.peak_bytes
    ]
    return f"peaks fall where budgets rise: {'; '.join(falls)}" if falls else "no peak falls where its budget rises"


# shown --------------------------------------------------------------------------------------------------------------


def shown(rows: Sequence[Measured]) -> Table:
    table = Table(
        "method", "budget", "peak", "foretold", "time over plain", "run again", "fit in that", box=None, pad_edge=False
    )
    for row in rows:
        foretold = megabytes(row.foretold_bytes) if row.foretold_bytes else ""
        again = f"{row.recomputed} of {row.blocks}" if row.blocks else ""
        within = [each.time for each in of(rows, FIT) if each.peak_bytes <= AS_MUCH * row.peak_bytes]
        ours = "" if row.method == FIT else f"{min(within):.3f}" if within else "none"
        spread = f"{row.time:.3f} [{row.low:.3f}, {row.high:.3f}]"
        table.add_row(row.method, row.budget_words, megabytes(row.peak_bytes), foretold, spread, again, ours)
    return table


def drawn(rows: Sequence[Measured], title: str, width: float = 760, height: float = 470) -> Drawing:
    """Time against peak; a method's points in the order of its budgets, torch's with them."""
    megas, times = [row.peak_bytes / 1e6 for row in rows], [row.time for row in rows]
    room, above = 0.05 * (max(megas) - min(megas)), 0.08 * (max(times) - min(times))
    frame = Frame(
        68,
        58,
        width - 16,
        height - 46,
        Axis(
            "peak memory of a step, MB: weights, gradients, batch and activations",
            min(megas) - room,
            max(megas) + room,
            logarithmic=False,
        ),
        Axis("step time over the plain eager one's", min(times) - above, max(times) + above, logarithmic=False),
    )
    places = {row: (frame.px(row.peak_bytes / 1e6), frame.py(row.time)) for row in rows}
    labels = Labels((frame.left, frame.top, frame.right, frame.bottom), [point_box(*each) for each in places.values()])
    marks: list[Mark] = [Words(8, 20, title, kind="head"), *frame.marks()]
    marks.append(Line("one", [(frame.left, frame.py(1)), (frame.right, frame.py(1))]))
    x = frame.left
    for name, ink in INKS.items():
        marks += [Dot(f"dot {ink}", x + 5, 42, 4.5), Words(x + 15, 46, name)]
        marks.append(Line(f"mean {ink}", [places[row] for row in of(rows, name)]))
        x += 40 + LETTER * len(name)
    for row, (x, y) in sorted(places.items(), key=lambda each: each[0].method in INKS):  # their names first
        says = f"{row.method} {row.budget_words}: {megabytes(row.peak_bytes)}, {row.time:.2f} of a plain step's time"
        name = NAMES.get(row.method, row.method)
        name = "" if row.method == FIT else row.budget_words if row.method == COMPILED else name
        dot = Dot(f"dot {INKS[row.method]}" if row.method in INKS else "open", x, y, 4.5)
        marks.append(MarkGroup([dot, *(labels.place(x, y, name) if name else [])], says))
    return Drawing(width, height, marks, f"{title}; the table has the numbers.")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.fit_beside_others", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--write", type=Path, action="append", default=[], metavar="FILE.svg", help="or .png, .pdf")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    for path in chosen.write:
        check_format(path)
    start_s = time.monotonic()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own news
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 4 * len(SHARES)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    backend = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager_decomp_partition"

    model = llama(chosen.blocks)
    tokens = torch.randint(VOCABULARY, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens}
    among = list(methods(model, batch, backend))
    expected, peaks = warmed(among[0], batch), []
    for method in among:
        torch.testing.assert_close(warmed(method, batch), expected, rtol=1e-3, atol=1e-5)
        peaks.append(peak_bytes(method, batch))
    prepared_s = time.monotonic() - start_s
    logs, plain_s = log_ratios(among, batch, chosen.rounds)
    rows = measured(among, peaks, logs)

    by_tensors = tensor_bytes(among[0], batch)
    notes = [
        f"Llama of {chosen.blocks} blocks, hidden size {HIDDEN}, {EXAMPLES} x {TOKENS} tokens, one thread, "
        f"torch {torch.__version__}, backend {backend}; a plain step takes {plain_s:.3f} s of CPU",
        f"meter: the plain pass's peak is {peaks[0]} bytes by the allocator's events, {by_tensors} by TensorBytes, "
        f"{peaks[0] / by_tensors - 1:+.2%}",
        *(f"{name}: {monotone(of(rows, name))}" for name in INKS),
        f"{time.monotonic() - start_s:.0f} s, {prepared_s:.0f} of them before the first round",
    ]
    Console(width=140, highlight=False).print(shown(rows))
    print(*notes, sep="\n")
    if chosen.json:
        chosen.json.write_text(json.dumps({"notes": notes, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    title = f"Recomputation on a Llama of {chosen.blocks} blocks: step time at equal peak memory"
    for path in chosen.write:
        save(drawn(rows, title), path)


if __name__ == "__main__":
    main()
