"""Implements GACT: any model's activations in four bits on average, more for those whose rounding moves the gradient
most.

Liu et al., "GACT: Activation Compressed Training for Generic Network Architectures" (ICML 2022, arXiv 2206.11357),
section 4 and the authors' code:

    every ``interval`` steps, for each saved tensor l, the others whole:
        g0, g1    gradients with l in 1 bit, rounded twice          g2    with l in 8 bits
        C_l = max(||g0 - g1||^2, 2 ||g0 - g2||^2, 2 ||g1 - g2||^2)
    b_l in 1, 2, 4, 8, 32: least sum C_l / (2^b_l - 1)^2 of ``bits`` on average over all numbers
    in each step: save tensor l in b_l bits, rounded at random
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from suite.device.random_state import RandomState, unchanged_randomness
from suite.loop.data import Batch, generator
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.activation_compression.shared.bit_allocation import WHOLE, allocated
from techniques.activation_compression.shared.saved_tensors import Packing, Saved
from techniques.shared.packed import WIDTHS, Rows, packed_rows

STREAM = 8  # of the seed, for the roundings of the passes that measure
LARGEST = 1e10  # a sensitivity at most, also where a gradient is not finite
ENOUGH = 8  # bits for what fused attention and the loss save, where nothing is measured


def sensitivity(g0: Sequence[Tensor], g1: Sequence[Tensor], g2: Sequence[Tensor]) -> float:
    """Computes C_l, from the gradients with l in 1 bit, twice, and in 8 bits."""
    largest = max(distance(g0, g1), 2 * distance(g0, g2), 2 * distance(g1, g2), key=nan_last)
    return largest if largest < LARGEST else LARGEST


def quantized(saved: Saved, bits: int, noise: torch.Generator) -> Rows | None:
    """Returns a tensor's numbers in ``bits`` each; None where these are all."""
    return None if bits == WHOLE else packed_rows(saved.numbers[None], [bits], noise)


def one_packed(run: Run, batch: Batch, key: str, bits: int, noise: torch.Generator) -> list[Tensor]:
    """Computes gradients of the baseline's loss with one of the saved tensors in ``bits``, and the others whole."""
    with Packing(run.model, lambda saved: quantized(saved, bits if saved.key == key else WHOLE, noise)):
        with run.autocast():
            outputs = run.baseline.forward(run.model, batch)
        loss = run.baseline.losses(outputs, batch).mean()
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    return [gradient for gradient in torch.autograd.grad(loss, trained, allow_unused=True) if gradient is not None]


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Computes the squared distance of two gradients."""
    return torch.stack([(a - b).float().square().sum() for a, b in zip(one, other, strict=True)]).sum().item()


def nan_last(value: float) -> float:
    """Returns infinity in the place of NaN, for a largest number that is NaN where one is."""
    return math.inf if math.isnan(value) else value


@dataclass
class GACT(Technique):
    """Implements GACT, with ``bits`` on average, of 1, 2, 4, 8 and 32; unless ``adaptive``, for every tensor. 32 packs
    nothing."""

    takes: ClassVar[str] = "packs what the passes save"
    bits: float = 4.0
    adaptive: bool = True
    interval: int = 1000
    zero_strength: ClassVar[Mapping[str, Any]] = {"bits": float(WHOLE)}

    sizes: dict[str, int] = field(init=False, repr=False, default_factory=dict)  # of the tensors of this step
    widths: dict[str, int] = field(init=False, repr=False, default_factory=dict)  # b_l
    sensitivities: dict[str, float] = field(init=False, repr=False, default_factory=dict)  # C_l
    measured: int = field(init=False, repr=False, default=-1)  # the step in which they were
    measuring: bool = field(init=False, repr=False, default=False)  # passes that are no part of the step
    packs: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= WHOLE:
            raise ValueError(f"bits are a mean of 1, 2, 4, 8 and 32: from 1 to 32, not {self.bits:g}")
        if not self.adaptive and self.bits not in (*WIDTHS, WHOLE):
            raise ValueError(f"without adaptive all tensors have 1, 2, 4, 8 or 32 bits, not {self.bits:g}")
        if self.interval < 1:
            raise ValueError(f"interval is 1 or more steps between two measurements, not {self.interval}")

    @property
    def takes_own_gradients(self) -> bool:
        return self.adaptive

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.is_reference:
            return nullcontext()
        if run.recipe.compile:
            raise ValueError("gact packs what single operators save, which torch.compile fuses: use the recipe modern")
        self.sizes = {}

        def keep(saved: Saved) -> Rows | None:
            if self.measuring:  # what a pass that measures recomputes
                return None
            self.packs()
            self.sizes[saved.key] = saved.numbers.numel()
            return quantized(saved, self.widths.get(saved.key, self.default_bits(saved)), run.generator)

        return Packing(run.model, keep)

    def default_bits(self, saved: Saved) -> int:
        """Returns the bits of a tensor whose sensitivity is not known: the widest that the mean allows."""
        bits = max(width for width in (*WIDTHS, WHOLE) if width <= self.bits)
        return max(bits, ENOUGH) if saved.sensitive else bits

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        due = self.adaptive and not self.is_reference and run.step % self.interval == 0
        if due and self.measured != run.step:
            self.measured = run.step
            sizes = dict(self.sizes)
            fake = isinstance(loss, FakeTensor)  # which has no values: all numbers are alike
            self.sensitivities = {key: float(n) for key, n in sizes.items()} if fake else self.measure(run, batch)
            costs = [self.sensitivities[key] for key in sizes]
            widths = allocated(costs, list(sizes.values()), self.bits * sum(sizes.values()), WHOLE)
            self.widths = dict(zip(sizes, widths, strict=True))
        return loss

    def measure(self, run: Run, batch: Batch) -> dict[str, float]:
        """Measures C_l of every tensor of this step, by three passes for each."""
        self.measuring = True
        with run.unreduced(), as_it_was(run) as again:

            def gradients(number: int, key: str, bits: int, draw: int) -> list[Tensor]:
                again()
                return one_packed(run, batch, key, bits, generator(run.seed, STREAM, run.step, number, draw))

            measured = {
                key: sensitivity(*(gradients(number, key, bits, draw) for bits, draw in ((1, 0), (1, 1), (8, 2))))
                for number, key in enumerate(self.sizes)
            }
        self.measuring = False
        return measured

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"packs what is saved": self.packs}

    def state(self) -> dict[str, Any]:
        return {"widths": self.widths, "sensitivities": self.sensitivities}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.widths, self.sensitivities = dict(state["widths"]), dict(state["sensitivities"])


@contextmanager
def as_it_was(run: Run) -> Iterator[Callable[[], None]]:
    """Gives what sets torch's randomness back to the start, for each further pass; at the end, with the buffers."""
    buffers = {buffer: buffer.clone() for buffer in run.model.buffers()}
    with unchanged_randomness(run.device):
        yield RandomState.now(run.device).restore
    with torch.no_grad():
        for buffer, before in buffers.items():
            if not torch.equal(buffer, before):  # a graph may hold what did not change
                buffer.copy_(before)
