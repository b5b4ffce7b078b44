"""Checks what a recorded step shows of integer layers: that they keep and multiply integers, and how those were
rounded.

The step is run once more at its own integers with its own randomness; its gradients must be the recorded ones. The
integer gradients that it leaves say what the recorded update should have been, to one unit, and on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.precision.int_only.technique import IntOnly

OF_ITS_BASELINES = True  # whose layers run once a step


@dataclass
class Roundings:
    """Compares numbers with what they were rounded to, in units: ``beyond``: by a unit or more; and how far from the
    truth on average, away from zero, in standard deviations of unbiased rounding to a neighbour."""

    beyond: int = 0
    sum: float = 0.0
    variance: float = 0.0

    def add(self, exact: Tensor, rounded: Tensor) -> None:
        """Adds numbers and what they were rounded to, both float64."""
        error, share = rounded - exact, exact - exact.floor()
        self.beyond += int((error.abs() >= 1).sum())
        self.sum += (error * exact.sign()).sum().item()
        self.variance += (share * (1 - share)).sum().item()

    @property
    def bias(self) -> float:
        return abs(self.sum) / math.sqrt(self.variance) if self.variance else 0.0


@dataclass
class Products(TorchDispatchMode):
    """Looks, while active, at int8 products: their sums, and what the first operand was rounded from (``awaited``)."""

    count: int = 0
    inexact: int = 0
    floating: int = 0
    output_off: float = 0.0
    grad_input_off: float = 0.0
    awaited: Tensor | None = None
    roundings: Roundings = field(default_factory=Roundings)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if name in ("integer_product", "_int_mm"):
            self.count += 1
            self.inexact += int((result.double() != args[0].double() @ args[1].double()).sum())
            self.floating += sum(argument.dtype != torch.int8 for argument in args[:2]) + (result.dtype != torch.int32)
            if self.awaited is not None:
                values = self.awaited.reshape(args[0].shape).double()
                largest = values.abs().max().item() or 127.0
                unit = 2.0 ** math.ceil(math.log2(largest / 127))
                self.roundings.add(values / unit, args[0].double())
                self.awaited = None
        elif name in ("mm", "addmm") and self.awaited is not None:
            self.floating += 1
        return result


@judged(
    "floating_tensors",
    "All parameters are stored as integers.",
    "Abstract",
    id="integers_kept",
    note="of the linear layers in blocks: weights, biases, exponents, and what the optimizer keeps of them",
)
@judged(
    "floating_operands",
    "All operands of products are int8, and their sums int32.",
    "Abstract",
    id="integers_multiplied",
    note="of the linear layers in blocks, forward and backward",
)
@judged("inexact_sums", "Int32 sums are exact.", "The arithmetic of int8 units", id="exact_sums", scope="module")
@judged(
    "output_off",
    "Mantissas and exponents stand for the product of input and weight, but for rounding.",
    "y = m 2^e, exponents of factors added",
    id="output",
    at_most=0.15,  # of its norm: seven bits with one exponent a tensor
    scope="module",
)
@judged(
    "grad_input_off",
    "They stand for the input's gradient, but for rounding.",
    "y = m 2^e, exponents of factors added",
    id="grad_input",
    at_most=0.3,  # gradients have the longer tails
    scope="module",
)
@judged(
    "operands_beyond",
    "Operands are rounded to one of the two nearest integers of seven bits.",
    "The authors' StoShift",
    id="operands_to_a_neighbour",
    scope="module",
)
@judged(
    "operand_bias",
    "Stochastic rounding has the number itself as its mean.",
    "E[SR(x)] = x",
    id="operands_unbiased",
    at_most=5.0,  # standard deviations
    scope="module",
)
@judged(
    "update_beyond",
    "Weights move by the integer gradient, scaled by a power of two so that its largest element has mu bits, and "
    "rounded to a neighbour.",
    "The authors' grad_calc and weight_update",
    id="update_to_a_neighbour",
    note="mu falls with the learning rate; tensors whose exponent has grown are left out",
)
@judged(
    "update_bias",
    "The update's rounding has the update itself as its mean, so that steps below one unit are not lost.",
    "E[SR(x)] = x",
    id="update_unbiased",
    at_most=5.0,  # standard deviations
)
@judged("silent", "Every integer tensor gets an integer gradient.", "The authors' weight_update", id="all_trained")
@judged(
    "unlike_the_step",
    "The same seed gives the same roundings: the step's gradients come again to the bit.",
    "Determinism of this implementation",
    id="replays",
)
def probes(recording: Recording, own: IntOnly) -> Mapping[str, float]:
    """Distances are the worst layer's, over the norm of the floating-point product with the weights that the integers
    stand for; biases are in standard errors (:class:`Roundings`). Tensors and operands that are not as stated are
    counted, gradients by a bit. A claim reads ``products_a_layer``."""
    trace, run = recording.trace, recording.run
    layers = [part.module for part in anatomy(run.model).linears]
    before, after = trace.before, trace.after
    with _exponents(run, before.buffers), _watched(layers) as products:
        gradients = recording.gradients_at(before.parameters)
    updates, silent = Roundings(), 0
    share = run.recipe.learning_rate_at(trace.step) / run.recipe.learning_rate
    for path, entry in _integer_weights(run):
        if entry.gradient is None:
            silent += 1
            continue
        gradient = entry.gradient.double()
        largest = gradient.abs().max().item()
        units = share * 2 ** (own.step_bits + own.accumulator_bits - 8) / 2 ** (math.floor(math.log2(largest or 1)) + 1)
        old, new = (moment.parameters[f"{path}.mantissa"].double() for moment in (before, after))
        if before.buffers[f"{path}.exponent"] == after.buffers[f"{path}.exponent"]:  # not halved
            updates.add(-gradient * units, new - old)
        entry.gradient = None
    ours = trace.of("backward")[0].gradients
    return {
        "floating_tensors": _floating(run, layers),
        "floating_operands": products.floating,
        "inexact_sums": products.inexact,
        "output_off": products.output_off,
        "grad_input_off": products.grad_input_off,
        "products_a_layer": products.count / len(layers),
        "operands_beyond": products.roundings.beyond,
        "operand_bias": products.roundings.bias,
        "update_beyond": updates.beyond,
        "update_bias": updates.bias,
        "silent": silent,
        "unlike_the_step": sum(not torch.equal(ours[name], gradient) for name, gradient in gradients.items()),
    }


def _integer_weights(run: Run) -> list[tuple[str, Any]]:
    return [(path, module) for path, module in run.model.named_modules() if hasattr(module, "mantissa")]


def _floating(run: Run, layers: list[nn.Module]) -> int:
    tensors = [tensor for layer in layers for tensor in (*layer.parameters(), *layer.buffers())]
    state = [
        value for tensor in tensors if tensor in run.optimizer.state for value in run.optimizer.state[tensor].values()
    ]
    return sum(isinstance(tensor, Tensor) and tensor.is_floating_point() for tensor in (*tensors, *state))


@contextmanager
def _exponents(run: Run, buffers: Mapping[str, Tensor]) -> Iterator[None]:
    """Gives the model the recorded exponents meanwhile."""
    own = {name: buffer for name, buffer in run.model.named_buffers() if name.endswith("exponent")}
    copies = {name: buffer.clone() for name, buffer in own.items()}
    try:
        for name, buffer in own.items():
            buffer.copy_(buffers[name])
        yield
    finally:
        for name, buffer in own.items():
            buffer.copy_(copies[name])


@contextmanager
def _watched(layers: list[nn.Module]) -> Iterator[Products]:
    """Looks at the products of the layers that run meanwhile."""
    products = Products()

    def begins(layer: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        own = args[0].clone()  # its gradient is this layer's alone
        products.awaited = own.detach()
        return (own,)

    def ends(layer: Any, args: tuple[Tensor], y: Tensor) -> None:
        weight, bias = layer.weight, layer.bias
        plain = args[0].detach() @ weight.T + (0.0 if bias is None else bias)
        products.output_off = max(products.output_off, _off(y.detach(), plain))

        def leaves(dy: Tensor) -> None:
            products.awaited = dy.detach()
            args[0].register_hook(lambda dx: arrives(dx, dy.detach() @ weight))

        y.register_hook(leaves)

    def arrives(dx: Tensor, plain: Tensor) -> None:
        products.grad_input_off = max(products.grad_input_off, _off(dx, plain))

    hooks = [layer.register_forward_pre_hook(begins) for layer in layers]
    hooks += [layer.register_forward_hook(ends) for layer in layers]
    try:
        with products:
            yield products
    finally:
        for hook in hooks:
            hook.remove()


def _off(ours: Tensor, plain: Tensor) -> float:
    return ((ours - plain).norm() / plain.norm()).item()
