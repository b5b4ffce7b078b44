"""EarlyBERT: heads and neurons that a short search finds unimportant are removed, and training starts again without.

Chen, Cheng, Wang, Gan, Wang & Liu, "EarlyBERT: Efficient BERT Training via Early-bird Lottery Tickets" (ACL-IJCNLP
2021, arXiv 2101.00063), section 3: coefficients c = 1 on attention heads and on the neurons of the MLPs are trained
with the model, under L1, for a short while. Then the third of each layer's heads and the 40 % of all neurons with the
smallest |c| go, the rest goes back to its initial weights, and the smaller network is trained as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.sparse_training.shared.gates import Gates


def search_steps(share: float, steps: int) -> int:
    """Steps of the search, one at least."""
    return max(1, round(share * steps))


@dataclass(frozen=True)
class Restarted(Recipe):
    """Runs a recipe whose schedule begins anew after ``search_fraction`` of the steps. Until then the learning rate is
    ``search_rate`` times the recipe's, warmed up and not decayed: the paper's search is the beginning of a long run."""

    search_fraction: float = 0.0
    search_rate: float = 1.0

    def learning_rate_at(self, step: int) -> float:
        first = search_steps(self.search_fraction, self.steps)
        plain = Recipe(**{attribute.name: getattr(self, attribute.name) for attribute in fields(Recipe)})
        if step < first:
            return self.search_rate * replace(plain, steps=first, schedule="constant").learning_rate_at(step)
        return replace(plain, steps=max(1, self.steps - first)).learning_rate_at(step - first)


@dataclass
class EarlyBert(Technique):
    """``heads`` of each layer and ``neurons`` of all are removed, after ``search`` of the steps, in which the loss has
    ``penalty`` times the sum of |c|, and the learning rate is ``search_rate`` times the recipe's."""

    heads: float = 1 / 3
    neurons: float = 0.4
    search: float = 0.2 / 2.2
    penalty: float = 1e-4
    search_rate: float = 0.5
    zero_strength: ClassVar[Mapping[str, Any]] = {"heads": 0.0, "neurons": 0.0}

    removed: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    gates: Gates | None = field(init=False, repr=False, default=None)
    initial: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    ticket: list[list[int]] = field(init=False, repr=False, default_factory=list)  # empty while it searches

    def __post_init__(self) -> None:
        if not (0 <= self.heads < 1 and 0 <= self.neurons < 1):
            raise ValueError(f"heads and neurons are shares to remove, in [0, 1), not {self.heads} and {self.neurons}")
        if not 0 < self.search < 1:
            raise ValueError(f"search is a share of the steps, between 0 and 1, not {self.search}")
        if not (self.penalty >= 0 and self.search_rate > 0):
            raise ValueError(
                f"penalty is 0 or more and search_rate positive, not {self.penalty} and {self.search_rate}"
            )

    def recipe(self, recipe: Recipe) -> Recipe:
        if self.is_reference:
            return recipe
        if type(recipe) is not Recipe:
            raise ValueError(
                "earlybert runs the learning rate's schedule twice, and another technique of the stack has put its own "
                "in place of it: leave one of them out"
            )
        return Restarted(**recipe.as_dict(), search_fraction=self.search, search_rate=self.search_rate)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.mesh is not None:
            raise ValueError("earlybert changes the model while it trains: use it in a single process")
        self.gates = Gates.on(model, run, self.heads, self.neurons)
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        if self.gates and run.step == 0:  # the stack has made the model, and nothing has trained it
            self.initial = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
        return groups

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if self.gates is None or self.ticket:
            return loss
        return loss + self.penalty * self.gates.penalty(run.model)

    def after_step(self, run: Run) -> None:
        if self.gates and not self.ticket and run.step >= search_steps(self.search, run.recipe.steps):
            masks = self.gates.masks(run.model, self.heads, self.neurons)
            self.start_again(run, [mask.nonzero()[:, 0].tolist() for mask in masks])

    @torch.no_grad()
    def start_again(self, run: Run, ticket: list[list[int]]) -> None:
        """Trains the initial network with no units but those of ``ticket`` from now on, with a fresh optimizer."""
        assert self.gates
        now = {name: tensor.shape for name, tensor in run.model.state_dict().items()}
        if now != {name: value.shape for name, value in self.initial.items()}:
            raise ValueError(
                "earlybert goes back to the initial weights, and another technique has changed the model since: leave "
                "one of them out"
            )
        run.model.load_state_dict(self.initial)
        self.gates.prune(run.model, ticket)
        self.ticket, self.initial = ticket, {}
        self.removed()
        run.adopt(run.model)

    def sites(self, run: Run) -> Mapping[str, Site]:
        gates = self.gates.at(run.model) if self.gates else {}
        coefficients = {f"{path}.coefficients": gate.coefficients for path, gate in gates.items()}
        return {"removes heads and neurons": self.removed, **coefficients}

    def state(self) -> dict[str, Any]:
        return {"kept": self.ticket}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if state["kept"]:
            self.start_again(run, state["kept"])
