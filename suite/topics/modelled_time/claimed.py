"""Compares what papers claim of a step's time with the step modelled on a GPU: agreement within the model's error, or
not.

A claim is about a ratio of step times, technique over reference. The model says from where to where the ratio is: where
all of that fulfils the claim the two agree, where nothing of it does they disagree, and else the model cannot tell. It
is no verdict: nothing was measured. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from suite.entries.card import Claim
from suite.judge.claims import band
from suite.topics.modelled_time.gpu_times import ModelledTime

AGREES, DISAGREES = "agrees within the model's error", "disagrees beyond it"


@dataclass(frozen=True)
class BesideModel:
    """Holds a claim, and what one modelled step says of it."""

    claim: Claim
    time: ModelledTime

    @property
    def words(self) -> str:
        """Tells agreement or not."""
        assert self.time.ratio is not None
        width = 1 + (self.time.half_width or 0.0)
        least, most = self.time.ratio / width, self.time.ratio * width
        low, high = band(self.claim)
        strict = self.claim.relation in ("<", ">")
        if low <= least and most <= high and not (strict and (least == low or most == high)):
            return AGREES
        apart = most <= low or least >= high if strict else most < low or least > high
        return DISAGREES if apart else f"cannot tell (±{width - 1:.0%})"


def is_about_a_step(claim: Claim) -> bool:
    """Tells whether it is about the ratio of the technique's own step, by its defaults, to its reference's."""
    alone = not (claim.settings or claim.against or claim.within or claim.absolute)
    return claim.metric == "step_time" and claim.expected is not None and alone


def beside_model(claims: Iterable[Claim], times: Iterable[ModelledTime]) -> list[BesideModel]:
    """Puts each claim about a step beside each modelled step."""
    known = [time for time in times if time.ratio is not None]
    return [BesideModel(claim, time) for claim in claims if is_about_a_step(claim) for time in known]
