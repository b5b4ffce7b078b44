"""What the tests of this folder show: synthetic rows of every sort, a study, and hostile words."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from suite.entries.card import Card, Paper
from suite.judge.rows import Row, pairs
from suite.record.schema import Code, Line
from suite.topics.studies.batch_sweep import SweepRow
from suite.topics.studies.lab import StudyTable
from suite.topics.studies.study import Study
from tests.factories import (
    CODE,
    MACHINE,
    STEPS,
    conditions,
    counted,
    counters,
    evidence,
    learned,
    records,
    side,
    timed,
)

EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)> <!-- {{x}} $script ${data}"
CHANGED = Code(trajectory="x" * 32, counts="c" * 32)


def unpacked(letters: str) -> Any:
    """What the page's script makes of packed letters."""
    distinct, places = json.loads(gzip.decompress(base64.b64decode(letters)).decode("utf-8", "surrogatepass"))
    return json.loads("".join(distinct[place] for place in places))


def whole(page: str) -> str:
    """A page with its packed parts in their places, as its script puts them there."""
    (letters,) = re.findall(r'<script type="application/gzip" id="parts">([^<]*)</script>', page)
    parts = unpacked(letters)
    return re.sub(r'<p class="packed" data-part="(\d+)">[^<]*</p>', lambda place: parts[int(place[1])], page)


def shown(*groups: Iterable[Line], changed: Iterable[str] = ()) -> list[Row]:
    """The rows of the lines; the trajectory's code of the stacks ``changed`` is another one by now."""
    return pairs(records(*groups), lambda stack: "baseline", lambda _, stack: CHANGED if stack in changed else CODE)


def failing(stack: str, status: str, reason: str, seeds: int = 1) -> list[Line]:
    """Runs of a stack that learned nothing."""
    return [
        learned(),
        *(learned(stack, seed, status=status, reason=reason, curve=[]) for seed in range(seeds)),
    ]


def on(lines: Iterable[Line], **changes: Any) -> list[Line]:
    """The same evidence under other conditions, with ids of its own."""
    moved = []
    for each in lines:
        at = conditions(**{"steps": each.conditions.steps} | changes)  # type: ignore[union-attr]
        mark = "".join(map(str, changes.values()))
        moved.append(each.model_copy(update={"conditions": at, "id": each.id + mark}))
    return moved


def of_every_sort() -> list[Row]:
    """Tiers, bounds, one seed, no timings, no curves, and every way to fail."""
    half = [each for each in evidence("half") if getattr(each, "seed", None) != 1 or each.conditions.steps != 200]
    return shown(
        evidence("slow", pace_s=0.03),
        evidence("fast", pace_s=0.01),
        evidence("same"),
        evidence("lossy", final=2.9),
        evidence("gainful", final=1.5),
        evidence("untimed", replicates=0),
        evidence("unlearned", seeds=0),
        half,
        [learned("half", 1, status="diverged", reason="the loss became nan"), learned(seed=1)],
        failing("flash", "unavailable", "needs CUDA", 3),
        failing("wild", "diverged", "nan", 2),
        [timed([side(), side("stuck", status="hung", reason="silent for 600 s", windows=1)]), counted()],
        changed=["slow"],
    )


def lean(stack: str, peak_tensor_bytes: int, **changes: Any) -> list[Line]:
    """Evidence of a stack with this peak."""
    return evidence(stack, points=[counters(peak_tensor_bytes=peak_tensor_bytes)], **changes)


def twins(stack: str, **changes: Any) -> list[Line]:
    """Evidence of a control: the reference by another name, whose timings are its own."""
    lines = evidence(stack, **changes)
    of_whole = [each for each in lines if each.kind == "learned" and each.conditions.steps == STEPS]
    references = {each.seed: each for each in of_whole if each.stack != stack}
    return [
        each.model_copy(update={name: getattr(references[each.seed], name) for name in ("train_loss", "final")})
        if each.kind == "learned" and each.stack == stack
        else each
        for each in lines
    ]


def card(id: str, category: str = "evil", words: str = "") -> Card:
    paper = Paper(title=words, authors=words, venue=words, arxiv=words)
    return Card(id=id, name=words, category=category, sells="time", summary=words, paper=paper, baselines=("gpt",))


SWEEP = StudyTable(
    "steps_to_quality",
    SweepRow._fields,
    [
        SweepRow(32, "reference", 1e-3, 3, 3, 200.0, 6400.0, 50.0, 2.0, 1.9, 2.1, 40.0, 2.0),
        SweepRow(128, "linear", 4e-3, 3, 3, 60.0, 7680.0, 15.0, 2.0, 1.9, 2.1, 30.0, 2.0),
        SweepRow(512, "linear", 1.6e-2, 3, 0, None, None, None, float("nan"), None, None, 20.0, None),
    ],
    "medians over the seeds",
)


def study(technique: str = "linear_scaling_warmup", **changes: Any) -> Study:
    values: dict[str, Any] = {
        "technique": technique,
        "code": "t" * 32,
        "baseline": "gpt",
        "size": "nano",
        "recipe": "modern",
        "device": "cpu",
        "seeds": 3,
        "machine": MACHINE,
        "made": datetime(2026, 1, 2, tzinfo=UTC),
        "tables": [SWEEP],
    }
    return Study(**values | changes)
