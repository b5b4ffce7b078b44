"""Checks what a recorded step shows of int8 products: each linear layer's three products beside the formula in float64.

The step is run once more at its own parameters, where each layer's input, output and their gradients are kept, and so
are the operands and the sums of every int8 product. Its gradients must be the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.model.anatomy import Part, anatomy, is_transposed, weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.precision.int8_mixed.technique import Int8Mixed

OF_ITS_BASELINES = True  # whose layers run once a step
SUM_ERROR = 1e-5  # of a sum in float32, over the sum of its magnitudes


@dataclass
class Seen:
    """Holds a linear layer's tensors in a pass, as matrices of tokens: ``x``, ``y`` and their gradients ``dx`` and
    ``dy``."""

    layer: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Tensor:
        """Returns a tensor in float64, the input as the layer's products read it."""
        tensor = self.tensors[name].to(self.tensors["y"].dtype)
        return tensor.reshape(-1, tensor.shape[-1]).double()


class IntegerProducts(TorchDispatchMode):
    """While active, counts int8 products and those of their sums that are not exact."""

    count = inexact = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if operator.overloadpacket.__name__ == "integer_product":
            self.count += 1
            self.inexact += int((result.double() != args[0].double() @ args[1].double()).sum())
        return result


@judged(
    "output_off",
    "A layer's output is the product of its input, rounded to int8 by rows, and its weight, rounded as a whole.",
    "Algorithm 1, forward",
    id="output",
    at_most=0.003,  # of the output's norm; int8 itself is 0.01 off: a rounding at a tie may go either way
    scope="module",
)
@judged(
    "grad_input_off",
    "The input's gradient is the product of the output's, rounded to int8 by rows, and the weight, rounded as a whole.",
    "Algorithm 1, backward",
    id="grad_input",
    at_most=0.003,
    scope="module",
)
@judged(
    "grad_weight_off",
    "The weight's gradient is the product of the output's gradient and the input, none of them rounded to int8.",
    "Algorithm 1, backward: matmul_fp16",
    id="grad_weight",
    at_most=0.00001,
    scope="module",
    recipes=["classic"],  # bfloat16 rounds it
)
@judged(
    "grad_bias_off",
    "The bias's gradient is the sum of the output's, which is not rounded.",
    "By the chain rule",
    id="grad_bias",
    at_most=0.00001,
    scope="module",
    recipes=["classic"],
)
@judged(
    "inexact_sums",
    "Sums of int8 products are int32 and exact.",
    "The arithmetic of int8 units",
    id="exact_sums",
    scope="module",
)
@judged(
    "beyond_bound",
    "No output is farther from the exact product of the unrounded operands than half a step of each operand allows.",
    "By |ab - pq| <= |a| t/2 + |b| s/2 + s t/4, summed",
    id="bounded_error",
    scope="module",
    recipes=["classic"],  # bfloat16 rounds the output once more
)
@judged(
    "unlike_the_step", "The step's gradients are those that the layers' products give.", "Algorithm 1", id="in_the_step"
)
def probes(recording: Recording, own: Int8Mixed) -> Mapping[str, float]:
    """Distances are the worst layer's, over the formula's norm; numbers that are not as stated are counted, gradients
    by a bit. Claims read ``int8_products_a_layer``, and ``left_floating``, layers of blocks whose output is the
    unrounded product."""
    trace, run = recording.trace, recording.run
    layers = anatomy(run.model).linears
    with _watched(layers) as seen, IntegerProducts() as products:
        gradients = recording.gradients_at(trace.before.parameters)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    whole = own.weight_scale == "tensor"
    off: dict[str, float] = {}
    beyond = floating = 0
    with recording.at(trace.before.parameters), torch.no_grad():
        for call in seen:
            x, y, dx, dy = call.x, call.y, call.dx, call.dy
            w = weight_matrix(call.layer).to(call.tensors["y"].dtype).double()
            bias: Any = call.layer.bias
            added = torch.zeros(w.shape[0]) if bias is None else bias.double()
            dw = gradients[names[call.layer.weight]].double()  # type: ignore[index]
            dw = dw.T if is_transposed(call.layer) else dw
            db = torch.zeros(w.shape[0]) if bias is None else gradients[names[bias]].double() - dy.sum(0)
            here = {
                "output_off": _off(y, _product(x, w, own.output, whole) + added),
                "grad_input_off": _off(dx, _product(dy, w.T, own.grad_input, whole)),
                "grad_weight_off": _off(dw, _product(dy.T, x.T, own.grad_weight, False)),
                "grad_bias_off": (db.norm() / dy.abs().sum(0).norm()).item(),  # the sum itself may be 0
            }
            off = {name: max(value, off.get(name, 0.0)) for name, value in here.items()}
            exact = x @ w.T + added
            beyond += int(((y - exact).abs() > _bound(x, w, own.output, whole)).sum())
            floating += _off(y, exact) < SUM_ERROR
    ours = trace.of("backward")[0].gradients
    return {
        **off,
        "beyond_bound": beyond,
        "int8_products_a_layer": products.count / len(layers),
        "inexact_sums": products.inexact,
        "left_floating": floating + len(layers) - len(seen),
        "unlike_the_step": sum(not torch.equal(ours[name], gradient) for name, gradient in gradients.items()),
    }


def _step(x: Tensor, whole: bool) -> Tensor:
    """Computes the distance of neighbours that a row's numbers are rounded to, [rows, 1]: float32, as the layer has
    it."""
    largest = x.abs().max().expand(len(x), 1) if whole else x.abs().max(1, keepdim=True).values
    return (largest.float() / 127).double()


def _product(a: Tensor, b: Tensor, int8: bool, b_whole: bool) -> Tensor:
    """Computes a b^T, float64, of rounded operands where it is ``int8``."""
    if not int8:
        return a @ b.T
    s, t = _step(a, False), _step(b, b_whole)
    return ((a / s).nan_to_num().round() * s) @ ((b / t).nan_to_num().round() * t).T


def _bound(a: Tensor, b: Tensor, int8: bool, b_whole: bool) -> Tensor:
    """Computes how far a product of rounded operands can be from a b^T."""
    s, t = (_step(a, False) / 2).expand_as(a), (_step(b, b_whole) / 2).expand_as(b)
    rounding = a.abs() @ t.T + s @ b.abs().T + s @ t.T if int8 else 0.0
    return rounding + SUM_ERROR * (a.abs() @ b.abs().T + 1)


def _off(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).norm() / expected.norm()).item()


@contextmanager
def _watched(layers: Sequence[Part]) -> Iterator[list[Seen]]:
    """Collects what the layers that run meanwhile compute."""
    seen: list[Seen] = []

    def begins(layer: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        own = args[0].clone()  # its gradient is this layer's alone
        seen.append(Seen(layer, {"x": own.detach()}))
        own.register_hook(lambda gradient, tensors=seen[-1].tensors: tensors.update(dx=gradient))
        return (own,)

    def ends(layer: nn.Module, _: Any, output: Tensor) -> None:
        tensors = next(call.tensors for call in seen if call.layer is layer)
        tensors["y"] = output.detach().clone()
        output.register_hook(lambda gradient: tensors.update(dy=gradient))

    hooks = [layer.module.register_forward_pre_hook(begins) for layer in layers]
    hooks += [layer.module.register_forward_hook(ends) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
