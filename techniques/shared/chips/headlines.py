"""Sets a paper's headline numbers of its chip beside what the model says, what was measured, and the baseline's drift.

A row is one claim of a card. ``quoted`` is the paper's; ``modelled`` our accelerator model's, of the same ratio, from
``least`` to ``most`` where its inputs are a range; ``measured`` is what the same algorithm gains on the machine of the
study, over today's attention or library there; the ``drift`` is how far the baseline has moved that the paper compared
with, by the model and as measured. They are of different machines: no column is divided by another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.entries.card import Claim, read_card
from suite.judge.study_tables import StudyTable

METRIC = "study.headlines.modelled"
NOTE = (
    "Speed-ups. quoted: by the paper, of its chip; modelled: by arithmetic, from least to most; measured: of the "
    "algorithm alone, on the machine of this study; drift: of the baseline that the paper compared with, to today's. "
    "No column is over another: they are of different machines"
)


class Modelled(NamedTuple):
    """Holds what the model says of a headline's own ratio; ``of``: from what, and over what."""

    speedup: float
    least: float
    most: float
    of: str


class Beside(NamedTuple):
    """Holds what stands beside a headline. ``unavailable``: why what is None is not known."""

    modelled: Modelled | None
    measured: float | None
    measured_of: str
    drift_modelled: float | None
    drift_measured: float | None
    unavailable: str = ""


class Headline(NamedTuple):
    claim: str
    quoted: float
    modelled: float | None
    least: float | None
    most: float | None
    measured: float | None
    drift_modelled: float | None
    drift_measured: float | None
    modelled_of: str
    measured_of: str
    unavailable: str


def headline_claims(folder: Path) -> dict[str, Claim]:
    """Returns the headline claims of the card in ``folder``."""
    return {claim.id: claim for claim in read_card(folder / "card.toml").claim if claim.metric == METRIC}


def headlines(folder: Path, values: Mapping[str, Beside]) -> StudyTable:
    """Builds the table ``headlines``: ``values`` has what stands beside each claim. Raises ValueError where it lacks
    one."""
    claims = headline_claims(folder)
    if claims.keys() != values.keys():
        raise ValueError(f"{folder.name} has the headlines {', '.join(claims)}, and found are {', '.join(values)}")
    return StudyTable(
        "headlines", Headline._fields, [tuple(_row(claims[id], value)) for id, value in values.items()], NOTE
    )


def _row(claim: Claim, beside: Beside) -> Headline:
    assert claim.expected is not None
    own = beside.modelled
    speedup, least, most = (own.speedup, own.least, own.most) if own else (None, None, None)
    return Headline(
        claim.id,
        claim.expected,
        speedup,
        least,
        most,
        beside.measured,
        beside.drift_modelled,
        beside.drift_measured,
        own.of if own else "",
        beside.measured_of,
        beside.unavailable,
    )


def between(speedups: Sequence[float], of: str) -> Modelled:
    """Returns the range of some modelled speed-ups, and their lower median."""
    every = sorted(speedups)
    return Modelled(every[(len(every) - 1) // 2], every[0], every[-1], of)
