"""Writes the whole matrix of models as one HTML file that opens offline, filtered by technique, model and state.

A sentence that many cells say stands in it once, and all of it is packed (:mod:`suite.show.packing`). What is looked
for can stand in the address: ``models.html#technique=lora&state=refuses``.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from suite.show.packing import packed
from suite.show.pages.rendered import in_page
from suite.show.pictures.drawing import colours_css
from suite.topics.models.models_on_board import READING, Shown, sentence
from suite.topics.models.tried_models import VERDICTS, WORDS, Cell, ModelsMatrix

BOARD = "suite.topics.board"  # whose style it has


def render(shown: Shown) -> str:
    """Writes the page."""
    script = (files(__package__) / "models_page.js").read_text("utf-8")
    return in_page("models_page.html.jinja", Path(__file__).parent).render(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=colours_css() + (files(BOARD) / "board.css").read_text("utf-8"),
        script=script,
        sentence=sentence(shown),
        reading=READING,
        data=packed(content(shown.matrix, shown)),
    )


def content(matrix: ModelsMatrix, shown: Shown) -> dict[str, object]:
    """Returns what the page's script reads: states and reasons, each once, and a row of cells for each technique."""
    reasons: dict[str, int] = {"": 0}

    def entry(technique: str, model: str, cell: Cell | None) -> list[int] | None:
        if cell is None:
            return None
        reason = reasons.setdefault(cell.reason, len(reasons))
        return [VERDICTS.index(cell.verdict), reason, int(shown.is_stale(technique, model))]

    rows = [
        [technique, [entry(technique, model, row.get(model)) for model in matrix.models]]
        for technique, row in matrix.cells.items()
    ]
    return {
        "states": list(WORDS.values()),
        "models": [[name, model.baseline] for name, model in matrix.models.items()],
        "rows": rows,
        "reasons": list(reasons),
    }
