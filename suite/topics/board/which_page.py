"""Writes the page that answers *which technique should I take?*: chosen by goal, model, its size, GPU and memory.

All of it is from the records that the goal tables are made of. What a technique leaves of a model's states (parameters,
gradients, optimizer state) is counted in bytes a parameter at a paper's size, and taken to be the same at the reader's;
activations depend on batch and length, so that of them the share is shown. What fits exactly, with several techniques
together, is counted by ``leantrain recommend``, which the page spells for the reader.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from suite.record.paper_scale import Beside
from suite.show.packing import packed
from suite.show.pages.rendered import in_page
from suite.show.pictures.drawing import colours_css
from suite.topics.board.goals import GOALS, GoalLine, tables
from suite.topics.board.standing import Standing
from suite.topics.modelled_time.devices import by_any_name
from suite.topics.models.tried_models import WORDS


def render(standing: Standing) -> str:
    """Writes the page."""
    script = (files(__package__) / "which_page.js").read_text("utf-8")
    return in_page("which_page.html.jinja", Path(__file__).parent / "templates").render(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=colours_css() + (files(__package__) / "board.css").read_text("utf-8"),
        script=script,
        goals=[(goal.id, goal.title) for goal in GOALS],
        place=standing.place,
        data=packed(content(standing)),
    )


def content(standing: Standing) -> dict[str, object]:
    """Returns what the page's script reads: for each technique its goal, its words, its bytes a parameter beside its
    reference's, the share of activations that it leaves, its step by GPU as a ratio with the ends of its band, the
    quality, and how its trials on models ended."""
    models = standing.report.models
    names = list(models.matrix.models) if models else []

    def trials(stack: str) -> list[int | None]:
        row = models.matrix.cells.get(stack, {}) if models else {}
        return [[*WORDS].index(row[name].verdict) if name in row else None for name in names]

    rows = [
        [table.goal.id, *_words(line), *_bytes(line.at), _steps(line, standing), trials(line.stack)]
        for table in tables(standing)
        for line in table.lines
    ]
    gpus = list(dict.fromkeys(time.gpu for time in standing.report.gpu_times.times if time.ratio is not None))
    return {
        "rows": rows,
        "models": names,
        "states": list(WORDS.values()),
        "gpus": [[gpu, by_any_name()[gpu].memory_gb] for gpu in gpus],
    }


def _shown(line: GoalLine) -> str:
    """Returns the stack that was counted, which may name its ranks."""
    return line.at.stack.stack if line.at else line.stack


def _steps(line: GoalLine, standing: Standing) -> dict[str, list[float]]:
    """Returns the ratio of the counted stack's step, and the ends of its band, by GPU; of no other model or ranks."""
    return {
        time.gpu: [time.ratio, *([1.0, 1.0] if time.half_width is None else time.band)]
        for time in standing.report.gpu_times.times
        if time.ratio is not None
        and time.stack == _shown(line)
        and (line.at is None or time.place.baseline == line.at.stack.place.baseline)
    }


def _words(line: GoalLine) -> list[str]:
    """Returns what it is called and does, the verdict with its reason, and the quality with its interval."""
    quality = " ".join(filter(None, (line.quality.words, line.quality.ends)))
    return [_shown(line), line.does, line.verdict.word, line.verdict.detail, quality]


def _bytes(pair: Beside | None) -> list[float | None]:
    """Returns bytes of state a parameter of the reference and of the technique, and what is left of saved activations;
    None where it was not counted, or is spread over ranks."""
    if pair is None:
        return [None, None, None]
    of = pair.reference.quantities.get("parameter_count")
    sides = [side.quantities.get("state_bytes") for side in pair]
    states = [round(size / of, 3) if size is not None and of else None for size in sides]
    left = pair.ratio("saved_activation_bytes")
    return [*states, None if left is None else round(left, 4)]
