"""vDNN (Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, 2016): each layer's inputs leave for the host's memory behind its
forward pass, on a stream of their own, and come back just before its backward pass.

``all``: everything that a block's backward pass needs. ``inputs``: the block's input alone, as vDNN_conv moves those of
some layers alone. ``dyn``: the fastest of these and of nothing that fits, by trying them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from suite.chain.chain import Chain, Link
from suite.chain.schedule import Schedule, Value
from techniques.offloading.shared.offloaded import Offloaded, candidates, fastest_set

Policy = Literal["dyn", "all", "inputs"]


def chosen_by(policy: Policy, chain: Chain) -> list[list[Value]]:
    """Returns the sets of values that a policy tries: one, or for ``dyn`` that of each."""
    everything = candidates(chain)
    sets = {"all": everything, "inputs": [value for value in everything if value.item is None]}
    return [sets[policy]] if policy != "dyn" else [[], sets["inputs"], sets["all"]]


@dataclass
class VDNN(Offloaded):
    """Moves the policy's values, which leave whatever the budget; a policy that does not fit is refused."""

    policy: Policy = "dyn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in get_args(Policy):
            raise ValueError(f"policy is one of {', '.join(get_args(Policy))}, not {self.policy!r}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        sets = chosen_by(self.policy, chain)
        return fastest_set(chain, sets, budget_bytes, link, f"what policy {self.policy} leaves")
