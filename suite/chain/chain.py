"""Describes a chain: consecutive blocks of a model with their costs in time and bytes, in the middle of the rest of the
model.

Block i makes activation x_{i+1} of x_i. Its backward pass needs its *graph*, what autograd saves as it runs: mostly
x_i, sometimes x_{i+1}, and tensors of its own (Beaumont et al.'s a_i and \\bar a_i). The rest of the model is two
numbers in bytes, what lives beside the chain in its forward and in its backward pass, and the *turn*: from x_L to the
loss and back to the gradient of x_L.

All bytes are of distinct storages; parameters have a number of their own. Times are seconds, of the clock or of FLOPs
over a rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Stage:
    """Holds one block's costs.

    Attributes:
        run_s, save_s, back_s: a forward pass that keeps no graph, one that keeps it, and the backward pass, in seconds.
        output_bytes: of x_{i+1}, and of its gradient.
        saved_bytes: the graph's own tensors, one number each: neither x_i, nor x_{i+1}, nor weights.
        holds_input, holds_output: whether the graph keeps x_i and x_{i+1} alive.
        run_peak_bytes, save_peak_bytes, back_peak_bytes: most bytes alive in each, above those alive at its start. At
            the start of ``back`` the graph and the gradient of x_{i+1} are.
        gradient_bytes: of its parameters' gradients, which are there from its backward pass on.
        weight_bytes: of its parameters, which count where a schedule loads them.
        again_s, again_peak_bytes: of a save right before the block's backward pass, which may end with the last value
            that this asks for. None where such a save is as any other.
        stays: whether the last of ``saved_bytes`` is seen by no saved-tensor hook, so that it cannot leave.
        cached_bytes: of what a cache alone holds of a block that keeps its graph, until the turn is over.
        state_bytes: of the random state that a rerun begins with, from the block's first run without a graph on.
    """

    run_s: float
    save_s: float
    back_s: float
    output_bytes: int
    saved_bytes: tuple[int, ...]
    run_peak_bytes: int
    save_peak_bytes: int
    back_peak_bytes: int
    holds_input: bool = True
    holds_output: bool = False
    gradient_bytes: int = 0
    weight_bytes: int = 0
    again_s: float | None = None
    again_peak_bytes: int | None = None
    state_bytes: int = 0
    cached_bytes: int = 0
    stays: bool = False

    @property
    def graph_bytes(self) -> int:
        """Returns the bytes that ``save`` leaves, x_i left out and x_{i+1} with it: the literature's \\bar a."""
        return self.output_bytes + sum(self.saved_bytes)


@dataclass(frozen=True)
class Surroundings:
    """Describes what lives beside the chain at one of its blocks, where that differs from block to block.

    Attributes:
        forward_bytes, backward_bytes: as the block's forward and backward passes begin.
        between_bytes: most bytes alive between the forward pass of the block before and this one's, above those alive
            at the end of the former.
    """

    forward_bytes: int
    backward_bytes: int
    between_bytes: int = 0


@dataclass(frozen=True)
class Chain:
    """Holds blocks in their order, and the rest of the model around them.

    Attributes:
        input_bytes: of x_0, and of its gradient.
        forward_bytes, backward_bytes: what lives beside the chain in its forward and in its backward pass, at most.
        beside: the same at each block; empty where it is the same at all.
        turn_s: seconds from the end of the chain's forward pass to the start of its backward pass.
        turn_peak_bytes: most bytes alive in the turn, above those alive at its start.
        outside_bytes: most bytes alive before the chain's forward pass and after its backward pass.
        turn_of, outside_of: of what these are, in words: where in the pass, and what operator makes the highest.
        outside_s: seconds of all else in a pass: before, after, and between two blocks. A model's first chain has them.
        pass_s: seconds of a whole pass in which nothing runs again. A model's first chain has them.
    """

    stages: tuple[Stage, ...]
    input_bytes: int
    forward_bytes: int = 0
    backward_bytes: int = 0
    turn_s: float = 0.0
    turn_peak_bytes: int = 0
    outside_bytes: int = 0
    outside_s: float = 0.0
    pass_s: float = 0.0
    beside: tuple[Surroundings, ...] = ()
    turn_of: str = field(default="between the last block and its backward pass", compare=False)
    outside_of: str = field(default="before the first block or behind its backward pass", compare=False)

    @property
    def depth(self) -> int:
        return len(self.stages)

    @cached_property
    def activation_bytes(self) -> tuple[int, ...]:
        """Returns the bytes of x_0, ..., x_L."""
        return (self.input_bytes, *(stage.output_bytes for stage in self.stages))

    @property
    def turn_beside_bytes(self) -> int:
        """Returns the bytes that live beside the chain as its turn begins."""
        return self.beside[-1].forward_bytes if self.beside else self.forward_bytes

    @property
    def plain_s(self) -> float:
        """Returns the seconds of a pass that keeps every graph."""
        return sum(stage.save_s + stage.back_s for stage in self.stages) + self.turn_s


@dataclass(frozen=True)
class Link:
    """Describes the way to the second tier of memory and back, which may be busy at once: bytes per second."""

    out_bytes_per_s: float
    in_bytes_per_s: float

    def __post_init__(self) -> None:
        for rate in (self.out_bytes_per_s, self.in_bytes_per_s):
            if not rate > 0:
                raise ValueError(f"a link carries more than 0 bytes per second, not {rate}")
