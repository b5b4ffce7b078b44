"""Says what a training run has and how much is measured of it: the two groups of options of :func:`leantrain.compare`.

>>> training = leantrain.Training(recipe="classic", steps=200)
>>> leantrain.compare("lion", training=training, effort=leantrain.Effort(seeds=5, minutes=60))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from suite.measure import campaign

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind", bound=type)


def refuses_unknown(**groups: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Has a function refuse a keyword that it does not take, with where it belongs or what was meant.

    ``groups``: the parameters that are a group of options, each with its class.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function).parameters

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in own:
                    raise TypeError(_whereabouts(function.__qualname__.removesuffix(".__init__"), name, [*own], groups))
            return function(*args, **kwargs)

        return checked

    return decorated


def _whereabouts(taker: str, name: str, own: list[str], groups: dict[str, type]) -> str:
    """Tells, in a sentence, where an unknown keyword belongs."""
    for parameter, kind in groups.items():
        if name in (each.name for each in fields(kind)):
            return (
                f"{taker} takes {name} in {parameter}: {taker}(..., {parameter}=leantrain.{kind.__name__}({name}=...))"
            )
    known = [each for each in own if each != "self"]
    near = get_close_matches(name, known, n=1)
    return f"{taker} has no {name!r}; " + (f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}")


def _refuses_unknown_fields(kind: Kind) -> Kind:
    kind.__init__ = refuses_unknown()(kind.__init__)  # type: ignore[misc]
    return kind


@_refuses_unknown_fields
@dataclass(frozen=True)
class Training:
    """Says what a training run has besides its baseline and size. Raises TypeError for a field that it does not have.

    Attributes:
        recipe: ``"classic"``, ``"modern"`` or ``"compiled"``.
        task: ``"pretrain"`` or ``"adapt"``; None for what the technique's card says.
        steps: training steps of the reference, 2 or more; None for the baseline's.
        data: a Hugging Face data set id, or a local file or folder; None for the embedded data.
        model: a Hugging Face configuration folder or a timm model name; None for the baseline's.
        device: ``"cpu"`` or ``"cuda"``.
        threads: CPU threads of a run, 1 or more.
    """

    recipe: str = "modern"
    task: str | None = None
    steps: int | None = None
    data: str | None = None
    model: str | None = None
    device: str = "cpu"
    threads: int = 1


@_refuses_unknown_fields
@dataclass(frozen=True)
class Effort:
    """Says how much is measured, and in which time. Raises TypeError for a field that it does not have.

    Attributes:
        seeds: runs that each side learns, each with its own seed; 1 or more.
        timings: sets of fresh processes that are timed, 1 or more.
        ruler: seeds of the reference's scaling curve, which gives the time to the same quality; 0 for the curve that
            the results have.
        learn: whether to learn curves here even where another machine's are known.
        tune: whether learning rates are chosen on validation data where a card asks for that, for both sides alike.
        time: whether to time at all. A machine that others keep too busy is not timed either, with a warning.
        minutes: begin nothing new after so many minutes; the same call continues.
        rounds: paired rounds of a timing, 2 or more; 12 where None.
        time_limit_s: seconds that a run may take in all.
        hang_limit_s: seconds that it may be silent.
        sequential: time one side at a time: fits more in memory, pairs less.
    """

    seeds: int = 3
    timings: int = 3
    ruler: int = 0
    learn: bool = False
    tune: bool = True
    time: bool = True
    minutes: float = 10.0
    rounds: int | None = None
    time_limit_s: float = 3600.0
    hang_limit_s: float = 600.0
    sequential: bool = False

    def of_campaign(self) -> campaign.Effort:
        """Returns it as a campaign takes it. Raises ValueError for a number that asks for nothing."""
        from suite.measure import campaign
        from suite.measure.contenders.contender import Limits
        from suite.measure.missing import Wanted
        from suite.measure.timing import ROUNDS

        fewest = self.seeds >= 1 and self.timings >= 1 and self.ruler >= 0 and self.minutes > 0
        if not fewest or (self.rounds is not None and self.rounds < 2):
            raise ValueError("seeds and timings are 1 or more, ruler 0 or more, minutes more than 0, rounds 2 or more")
        return campaign.Effort(
            Wanted(self.seeds, self.timings if self.time else 0, self.ruler, self.learn, self.tune),
            self.minutes,
            Limits(self.time_limit_s, self.hang_limit_s),
            self.rounds or ROUNDS,
            self.sequential,
        )
