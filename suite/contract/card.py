"""The card of a technique: what it is, where it comes from, where it applies, and what its paper claims.

A card is a TOML file beside the technique. Claims are data: a statement, where the paper makes it, and a predicate that
records can be judged by.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suite.record.files import printable
from suite.record.job import RecipeName, Size, Task

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
    ``expected`` is its value: a cost ratio to the reference (a speedup's inverse) unless ``absolute``; a probe's own
    value either way. ``tolerance`` is relative. ``baselines``, ``recipes``, ``sizes`` and ``devices`` are where the
    claim can be judged: everywhere that the card names when empty.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+$")
    statement: str
    place: str  # section, table, figure or page
    metric: str
    scope: Scope
    kind: Kind
    expected: float | None = Field(default=None, allow_inf_nan=False)
    relation: Literal["==", "<=", ">=", "<", ">"] = "=="
    absolute: bool = False
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    quality_within: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # relative loss above the reference's
    baselines: tuple[str, ...] = ()
    recipes: tuple[RecipeName, ...] = ()
    sizes: tuple[Size, ...] = ()
    devices: tuple[Literal["cpu", "cuda"], ...] = ()
    conditions: str = ""  # hardware, shape, precision, batch of the paper's number
    verified: bool = False  # read in the paper or its code, not from memory

    @model_validator(mode="after")
    def _can_be_judged(self) -> Claim:
        if self.expected is None and self.kind != "literature":
            raise ValueError(f"the claim {self.id} needs a number in expected; only literature is quoted without one")
        if self.expected is not None and not self.absolute and self.expected <= 0 and self.kind != "literature":
            raise ValueError(f"the claim {self.id} expects a ratio of {self.expected:g}; set absolute = true")
        return self


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
    except OSError as error:
        raise CardError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CardError(f"{path}: {printable(problems)}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # tomllib's own, and what it lets through
        raise CardError(f"{path}: not valid TOML: {printable(str(error))}") from None
    if card.id != path.parent.name or card.category != path.parent.parent.name:
        raise CardError(f"{path}: id and category must be the names of its folders, not {card.category}/{card.id}")
    names = [claim.id for claim in card.claim]
    if len(set(names)) != len(names):
        raise CardError(f"{path}: two claims have the same id")
    for claim in card.claim:
        if foreign := sorted(set(claim.baselines) - set(card.baselines)):
            others = printable(", ".join(foreign))
            raise CardError(f"{path}: the claim {claim.id} names {others}, which the card's baselines lack")
    return card
