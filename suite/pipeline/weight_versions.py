"""Keeps several versions of a stage's weights, of which the parameters themselves hold one at a time.

Passes use the parameters, whatever version is in them; the others lie beside them. To bring another in place is an
exchange, so that n versions take n times the weights' bytes and no more. Where the parameters are written, autograd is
not told: a backward pass uses the values that are in place then, as those pipelines do that stash weights, or do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor


class WeightVersions:
    """Keeps versions, of which ``newest`` is what the next update changes, ``held`` the version that is in the
    parameters."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.newest = self.held = 0
        self.beside: dict[int, list[Tensor]] = {}

    @property
    def live(self) -> int:
        """Counts how many there are."""
        return len(self.beside) + 1

    @torch.no_grad()
    def use(self, version: int) -> None:
        """Brings a version into the parameters. Raises KeyError for one that is no longer there."""
        if version == self.held:
            return
        other = self.beside.pop(version)
        for parameter, values in zip(self.parameters, other, strict=True):
            previous = parameter.detach().clone()
            parameter.data.copy_(values)
            values.copy_(previous)
        self.beside[self.held], self.held = other, version

    @torch.no_grad()
    def begin_update(self, wanted: Collection[int]) -> None:
        """Prepares the optimizer's next version: the newest is in place, and those ``wanted`` later stay."""
        self.use(self.newest)
        self.beside = {version: values for version, values in self.beside.items() if version in wanted}
        if self.newest in wanted:
            self.beside[self.newest] = [parameter.detach().clone() for parameter in self.parameters]

    def end_update(self) -> None:
        """Ends the update, which the optimizer has written."""
        self.newest += 1
        self.held = self.newest

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint that has the parameters as they are."""
        beside = [{"version": version, "values": values} for version, values in self.beside.items()]
        return {"newest": self.newest, "held": self.held, "beside": beside}

    def restore(self, state: dict[str, Any]) -> None:
        self.newest, self.held = state["newest"], state["held"]
        self.beside = {version["version"]: list(version["values"]) for version in state["beside"]}
