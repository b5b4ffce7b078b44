"""The card of a technique: what it is, where it comes from, where it applies, and what its paper claims.

A card is a TOML file beside the technique. Claims are data: a statement, where the paper makes it, and a predicate that
records can be judged by.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suite.baseline import Task

Scope = Literal["kernel", "module", "step", "end_to_end", "time_to_quality"]
Kind = Literal["identity", "counted", "quality", "measured", "modelled", "literature"]


class CardError(ValueError):
    """A card that cannot be read; the message names the file, the field and the mend."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(Strict):
    title: str
    authors: str
    venue: str
    arxiv: str = ""
    url: str = ""


class Claim(Strict):
    """One statement of the paper.

    ``metric`` names a measured quantity (a counter, a probe, ``step_time``, ``loss``, ``time_to_quality``, ...);
    ``expected`` is its value: a ratio to the reference unless ``absolute``. ``tolerance`` is relative.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+$")
    statement: str
    place: str  # section, table, figure or page
    metric: str
    scope: Scope
    kind: Kind
    expected: float | None = None
    relation: Literal["==", "<=", ">=", "<", ">"] = "=="
    absolute: bool = False
    tolerance: float = Field(default=0.0, ge=0)
    quality_within: float | None = None  # the loss may be at most this much (relative) worse than the reference's
    baselines: tuple[str, ...] = ()  # all of the card's when empty
    conditions: str = ""  # hardware, shape, precision, batch of the paper's number
    verified: bool = False  # read in the paper or its code, not from memory


class Card(Strict):
    """See the module. ``reference`` is ``baseline`` or the id of the technique that this one is compared against."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    name: str
    category: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    summary: str
    paper: Paper
    surveys: tuple[Literal["zhuang2023", "gusak2022"], ...] = ()
    baselines: tuple[str, ...]
    task: Task = "pretrain"
    reference: str = "baseline"
    variant: str = ""  # which of the inequivalent public forms this is, and why
    limitations: str = ""  # what the counted or measured numbers do not show
    counter_evidence: str = ""
    peers: tuple[str, ...] = ()
    claim: tuple[Claim, ...] = ()


def read_card(path: Path) -> Card:
    """The card at ``path``. Raises CardError with one sentence per problem."""
    try:
        card = Card.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CardError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CardError(f"{path}: {problems}") from None
    if card.id != path.parent.name or card.category != path.parent.parent.name:
        raise CardError(f"{path}: id and category must be the names of its folders, not {card.category}/{card.id}")
    names = [claim.id for claim in card.claim]
    if len(set(names)) != len(names):
        raise CardError(f"{path}: two claims have the same id")
    return card
