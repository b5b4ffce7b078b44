"""Measures attention that skips blocks for a study, beside fused dense attention on the same machine.

``skipping``: time of predicting which blocks are kept and of attending to those very blocks, over that of dense
attention, against the number of tokens and the share of blocks. Where the technique's rule decides that share, heads
are of segments whose tokens are more and more alike, from none of which the rule leaves anything out to those that it
thins. Dense, predicted and attended take turns in one process; medians are of ratios within a turn. ``break_even``: the
largest share of blocks at which predicting and attending take less time.
``masks``: the technique's own masks, as pairs and as blocks: a pair that is left out saves a kernel nothing as long as
its block holds another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.measure.exact import one_thread
from suite.model.attention import eager
from suite.record.job import canonical
from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.shared.block_attention import block_attention
from techniques.attention.shared.kept_pairs import Pairs, pairs_of, worth
from techniques.shared.chips.headlines import Beside, Modelled
from techniques.shared.chips.numbers import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = (512, 1024, 2048, 4096)
DENSITIES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
WIDTH = 64  # of the one head
TURNS = 7
MASK_TOKENS, SEGMENT, TOPIC = 1024, 128, 0.6
TOPICS = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8)
FORWARD, BOTH = "forward", "forward and backward"


class Head(NamedTuple):
    """Holds one head of one example: what comes into the attention [1, tokens, width], and its queries, keys and values
    [1, 1, tokens, width]. ``topic``: the part of each that a segment shares."""

    x: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    topic: float

    @property
    def pairs(self) -> Pairs:
        return pairs_of(self.query, self.key, None, False, WIDTH**-0.5)


Predict = Callable[[Head, float], Tensor]
"""The blocks that a technique keeps, bool [1, 1, blocks, blocks]: this share where it is one to choose."""
Keep = Callable[[Head], Tensor]
"""The pairs that it keeps, bool [1, 1, tokens, tokens]."""


class SkippingRow(NamedTuple):
    """Holds times over fused dense attention's: ``whole`` is of predicting and attending, ``whole_cpu`` in processor
    time. Predicting belongs to the forward pass. ``block_density`` is of what was predicted."""

    tokens: int
    passes: str
    block_density: float
    predicting: float
    attending: float
    whole: float
    whole_cpu: float


NOTE = (
    "Measured where the study ran: one head of 64 numbers, float32, one thread, the blocks of 64 x 64 that were "
    "predicted, of tokens that share a topic with 127 others; over torch's fused attention of the same queries, keys "
    "and values, turn by turn in one process"
)
MASKS = (
    "Share of pairs and of 64 x 64 blocks. independent: Gaussian queries and keys; segments: 128 tokens in a row share "
    "a topic; recorded: trained models of this suite, means over blocks and seeds, of rows shorter than a block: "
    "what they show goes into no model of a chip's longer ones"
)


def skipping(lab: Lab, technique: str, predict: Predict, keep: Keep, *, chooses: bool = False) -> list[StudyTable]:
    """Returns the tables ``skipping``, ``break_even`` and ``masks``; ``chooses``: the share of blocks is one to
    choose."""
    rows = []
    with one_thread():
        for number, tokens in enumerate(TOKENS):
            lab.progress(number / len(TOKENS), f"{tokens} tokens")
            cases = [(TOPIC, share) for share in DENSITIES] if chooses else [(topic, 1.0) for topic in TOPICS]
            heads = [(drawn(tokens, topic), share) for topic, share in cases]
            rows += [timed(head, predict, share, passes) for passes in (FORWARD, BOTH) for head, share in heads]
    even = [(tokens, passes, *at_even(rows, tokens, passes)) for tokens in TOKENS for passes in (FORWARD, BOTH)]
    masks = [*synthetic(keep), *recorded(lab, technique)]
    return [
        StudyTable("skipping", SkippingRow._fields, [tuple(row) for row in rows], NOTE),
        StudyTable("break_even", ("tokens", "passes", "block_density", "speedup_at_a_tenth"), even, NOTE),
        StudyTable("masks", MASK_COLUMNS, masks, MASKS),
    ]


def drawn(tokens: int, topic: float = 0.0) -> Head:
    """Draws Gaussian numbers; with a ``topic`` the tokens of a segment share that part of what comes in."""
    random = torch.Generator().manual_seed(tokens)
    shared = torch.randn(-(-tokens // SEGMENT), WIDTH, generator=random).repeat_interleave(SEGMENT, 0)[:tokens]
    own = torch.randn(4, tokens, WIDTH, generator=random)
    x, query, key = (topic**0.5 * shared + (1 - topic) ** 0.5 * noise for noise in own[:3])
    scale = 1 + topic  # peaked, as trained attention is
    return Head(x[None], scale * query[None, None], scale * key[None, None], own[3][None, None], topic)


def timed(head: Head, predict: Predict, density: float, passes: str) -> SkippingRow:
    """Times dense attention, the prediction, and attention to what it predicts."""
    tokens, blocks = head.query.shape[2], predict(head, density)
    query, key, value = (tensor.clone().requires_grad_(passes == BOTH) for tensor in head[1:4])
    ways: tuple[Callable[[], Tensor], ...] = (
        lambda: F.scaled_dot_product_attention(query, key, value),
        lambda: predict(head, density),
        lambda: block_attention(query, key, value, blocks, scale=WIDTH**-0.5),
    )
    wall, cpu = turn_by_turn(ways, [query, key, value])
    shares = over_first(wall, 1), over_first(wall, 2), over_first(wall, 1, 2), over_first(cpu, 1, 2)
    return SkippingRow(tokens, passes, blocks.float().mean().item(), *shares)


Turns = list[list[float]]  # seconds of each way in each turn


def turn_by_turn(ways: Sequence[Callable[[], Tensor]], inputs: list[Tensor]) -> tuple[Turns, Turns]:
    """Measures by the clock, and of the processor: TURNS turns of all ``ways``, after one that is left out."""
    turns = [[_seconds(way, inputs) for way in ways] for _ in range(TURNS + 1)][1:]
    return [[wall for wall, _ in turn] for turn in turns], [[cpu for _, cpu in turn] for turn in turns]


def over_first(turns: Turns, *which: int) -> float:
    """Returns the median over turns of what these ways take together, over the first one."""
    return median(sum(turn[way] for way in which) / turn[0] for turn in turns)


def _seconds(way: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[float, float]:
    """Measures the seconds by the clock and of the processor; with a backward pass where the result has one."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = way()
    if result.requires_grad:
        torch.autograd.grad(result, inputs, torch.ones_like(result))
    return time.perf_counter() - wall, time.process_time() - cpu


def at_even(rows: Sequence[SkippingRow], tokens: int, passes: str) -> tuple[float | None, float | None]:
    """Returns the share of blocks at which predicting and attending take as long as dense attention, on straight lines
    between the shares that were tried (1 where it never is slower, None where it never is faster); and the speed-up
    nearest to a tenth of the blocks."""
    own = sorted((row.block_density, row.whole) for row in rows if (row.tokens, row.passes) == (tokens, passes))
    _, nearest = min((abs(density - 0.1), whole) for density, whole in own)
    even = None
    for number, (density, whole) in enumerate(own):
        if whole <= 1:
            even = density
        elif number and own[number - 1][1] <= 1:
            before, faster = own[number - 1]
            even = before + (density - before) * (1 - faster) / (whole - faster)
    return even, 1 / nearest


MASK_COLUMNS = ("of", "tokens", "pair_density", "block_density", "blocks_over_pairs", "mass", "output_error")


def synthetic(keep: Keep) -> Iterator[tuple[str | float | None, ...]]:
    for name, topic in (("independent", 0.0), ("segments", TOPIC)):
        head = drawn(MASK_TOKENS, topic)
        merit = worth(head.pairs, head.value, keep(head))
        yield name, MASK_TOKENS, merit.density, merit.blocks, merit.blocks / merit.density, merit.mass, merit.error


def recorded(lab: Lab, technique: str) -> Iterator[tuple[str | float | None, ...]]:
    """Yields the probes of trained models, where there are any."""
    seen = traces(lab, technique)
    if seen:
        density, blocks, mass, error = (
            fmean(call[name] for call in seen) for name in ("density", "blocks", "mass", "error")
        )
        yield f"recorded, {lab.setting.baseline}", None, density, blocks, blocks / density, mass, error


def traces(lab: Lab, technique: str, tokens: int = 0) -> list[dict[str, float]]:
    """Returns what the technique's probes say at the end of each finished run, without its name before them; of those
    whose rows have as many ``tokens``: what shorter ones show says nothing of longer ones."""
    contenders = [contender for _, contender in lab.runs([technique])[canonical(technique)]]
    own = f"{technique}."
    rows = [
        {name.removeprefix(own): value for name, value in contender.probes.items() if name.startswith(own)}
        for contender in contenders
        if contender.status == "ok"
    ]
    return [row for row in rows if row and row.get("tokens", 0) >= tokens]


# beside what is quoted and modelled ---------------------------------------------------------------------------------


def measured(tables: Sequence[StudyTable]) -> list[Number]:
    """Returns, of the table ``skipping``, the rows nearest to a tenth of the blocks, and how much faster fused
    attention is than the unfused one that papers compared with, both at the most tokens."""
    rows = [SkippingRow(*row) for table in tables if table.name == "skipping" for row in table.rows]
    most = max(row.tokens for row in rows)
    speeds = []
    for passes in (FORWARD, BOTH):
        own = [row for row in rows if (row.tokens, row.passes) == (most, passes)]
        near = min(own, key=lambda row: abs(row.block_density - 0.1))
        what = f"predicting and attending, {passes}, {most} tokens, {near.block_density:.2g} of the blocks"
        speeds.append(Number("measured", what, HERE, 1 / near.whole, "", f"{1 / near.whole_cpu:.3g} in processor time"))
    return [*speeds, drift_here(most)]


HERE = "fused attention on this machine, one thread"


def drift_here(tokens: int) -> Number:
    """Measures unfused over fused attention."""
    with one_thread():
        head = drawn(tokens)
        wall, cpu = turn_by_turn((lambda: dense(head), lambda: unfused(head)), [])
    what = f"baseline drift: fused attention, {tokens} tokens"
    against = "unfused attention on this machine, one thread"
    return Number("measured", what, against, over_first(wall, 1), "", f"{over_first(cpu, 1):.3g} in processor time")


def as_it_is(what: str, head: Head, way: Callable[[], Tensor]) -> Number:
    """Measures the technique's own form, which skips nothing, beside fused attention of the same head."""
    with one_thread(), torch.no_grad():
        wall, cpu = turn_by_turn((lambda: dense(head), way), [])
    return Number(
        "measured", what, HERE, 1 / over_first(wall, 1), "", f"{1 / over_first(cpu, 1):.3g} in processor time"
    )


def beside(modelled: Modelled, here: Sequence[Number], drifted: Sequence[Number]) -> Beside:
    """Returns what stands beside a headline over a GPU: ``here`` is what was measured, this machine's drift last;
    ``drifted`` the modelled one, in float32 first."""
    return Beside(modelled, here[0].speedup, _of(here[0]), drifted[0].speedup, here[-1].speedup)


def without_model(here: Sequence[Number], why: str) -> Beside:
    """Returns what stands beside a headline of which ``why`` says that no arithmetic reaches it."""
    return Beside(None, here[0].speedup, _of(here[0]), None, None, why)


def _of(number: Number) -> str:
    return f"{number.what}, over {number.against}"


def dense(head: Head) -> Tensor:
    return F.scaled_dot_product_attention(head.query, head.key, head.value)


def unfused(head: Head) -> Tensor:
    return eager(head.query, head.key, head.value, mask=None, causal=False, scale=WIDTH**-0.5, dropout_p=0.0)


def draw(axes: Axes, table: StudyTable) -> None:
    """Draws ``whole`` over the share of blocks: a line for each number of tokens, dashed with the backward pass;
    circles are where it takes as long as dense attention."""
    rows = [SkippingRow(*row) for row in table.rows]
    for number, tokens in enumerate(dict.fromkeys(row.tokens for row in rows)):
        for passes, line in ((FORWARD, "-"), (BOTH, "--")):
            own = sorted((r.block_density, r.whole) for r in rows if (r.tokens, r.passes) == (tokens, passes))
            label = f"{tokens} tokens" if passes == FORWARD else None
            axes.plot([x for x, _ in own], [y for _, y in own], line, marker=".", color=f"C{number}", label=label)
            even, _ = at_even(rows, tokens, passes)
            if even is not None:
                axes.plot([even], [1], "o", color=f"C{number}", fillstyle="none", markersize=9)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="share of 64 x 64 blocks that are kept",
        ylabel="time over fused dense attention's, prediction included",
    )
    axes.set_title("Measured. Lines: forward; dashes: with backward.", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
