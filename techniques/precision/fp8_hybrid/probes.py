"""Checks what a recorded step shows of products with operands of eight bits: each layer beside the formula in float64.

A step is run once more at its own parameters, scales and histories, where each layer's input, output and their
gradients are kept, what it saves, and the operands of every product of eight bits. Its gradients must be the recorded
ones. Rounding to a format is done here by exponents, the scale from the recorded history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import Part, anatomy, is_transposed, weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.precision.fp8_hybrid.technique import Float8Hybrid

OF_ITS_BASELINES = True  # whose layers run once a step
ROUNDING = 2.0**-24  # of a float32
OTHER_ROUNDINGS = 8  # of a sum: two scales, their inverses, the products with them, the bias
TOO_LARGE = 2.0**10  # times a scale: nearly all numbers are clipped


class Format(NamedTuple):
    """Holds bits of mantissa, the exponent of the smallest normal number, the largest number."""

    mantissa: int
    smallest: int
    largest: float
    dtype: torch.dtype


E4M3, E5M2 = Format(3, -6, 448.0, torch.float8_e4m3fn), Format(2, -14, 57344.0, torch.float8_e5m2)
FORMATS = (E4M3, E4M3, E5M2)  # of input, weight and output gradient, as the layer's buffers have them
OPERANDS = ((E4M3, E4M3), (E5M2, E4M3), (E5M2, E4M3))  # of the products in a layer's order: Y, dX, dW


@dataclass
class Seen:
    """Holds a layer's tensors in a pass, as matrices of tokens: ``x``, ``y`` and their gradients ``dx`` and ``dy``; the
    operands of its products; the sizes of what it saved, bytes and numbers."""

    path: str
    layer: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict)
    products: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        return tensor.reshape(-1, tensor.shape[-1])


def records(run: Run, own: Float8Hybrid) -> bool:
    """Selects the first step, whose histories are empty, and the middle one."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "output_off",
    "A layer's output is the product of its input and its weight, each scaled and rounded to E4M3.",
    "Section 3: E4M3 is recommended for weight and activation tensors",
    id="output",
    # of the output's norm: three roundings to bfloat16, of product, bias and sum; eight bits are 0.03 off
    at_most=0.006,
    scope="module",
)
@judged(
    "grad_input_off",
    "The input's gradient is the product of the output's, scaled and rounded to E5M2, and the weight in E4M3.",
    "Section 3: E5M2 is recommended for gradient tensors",
    id="grad_input",
    at_most=0.006,
    scope="module",
)
@judged(
    "grad_weight_off",
    "The weight's gradient is the product of the output's in E5M2 and the input in E4M3, and is not rounded to eight "
    "bits.",
    "Section 3",
    id="grad_weight",
    at_most=0.006,
    scope="module",
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
    "beyond_bound",
    "No number of the three products is farther from the exact product of the eight-bit operands than a float32 "
    "rounding for each summand, and for each scale, brings it.",
    "By |fl(sum) - sum| <= n 2^-24 sum |a b|",
    id="float32_sums",
    scope="module",
    recipes=["classic"],  # bfloat16 rounds the output once more
    note="on the CPU; fast accumulation on Hopper keeps fewer bits of the output's sums",
)
@judged("wrong_formats", "Inputs and weights are E4M3, gradients E5M2.", "Section 3", id="formats")
@judged(
    "largest_input",
    "What is too large for E4M3 becomes 448, its largest number.",
    "Table 1",
    equals=448.0,
    scope="module",
)
@judged(
    "largest_gradient",
    "What is too large for E5M2 becomes 57344, its largest number.",
    "Table 1",
    equals=57344.0,
    scope="module",
)
@judged(
    "input_rounding",
    "Three bits of mantissa: a normal number's rounding is at most 2^-4 of it.",
    "Table 1",
    at_most=0.0625,
    tolerance=0.00001,  # the scaled number is rounded to float32 before
    scope="module",
)
@judged(
    "gradient_rounding",
    "Two bits of mantissa: a normal number's rounding is at most 2^-3 of it.",
    "Table 1",
    at_most=0.125,
    tolerance=0.00001,
    scope="module",
)
@judged(
    "scales_off",
    "A scale is (largest of the format / largest magnitude of the previous steps) / 2^margin.",
    "Transformer Engine, DelayedScaling; the paper leaves the scale to software",
    id="delayed_scale",
)
@judged(
    "scaled_amax",
    "The largest magnitude of a history, scaled, is within the format.",
    "Transformer Engine, DelayedScaling",
    id="within_the_format",
    at_most=1.0,
    tolerance=0.0000002,  # two float32 roundings
)
@judged(
    "history_off",
    "A step's largest magnitudes are first in the history after it, and used by later steps alone.",
    "Transformer Engine, DelayedScaling",
    id="history",
)
@judged(
    "unlike_the_step", "The step's gradients are those that the layers' products give.", "Section 3", id="in_the_step"
)
@judged(
    "saved_bytes_a_number",
    "What a linear layer saves for its backward pass is a byte a number.",
    "By the width of the format, section 3",
    id="one_byte",
    equals=1.0,
    kind="counted",
    scope="module",
)
def probes(recording: Recording, own: Float8Hybrid) -> Mapping[str, float]:
    """Each is the largest of the recorded steps, of the worst layer, a distance from a formula over its norm. Numbers,
    scales, entries and operands that are off are counted, gradients by a bit. Magnitudes are seen where scales are far
    too large. Claims read ``products_a_layer``, and ``left_floating``, layers whose output is the unrounded product."""
    steps = [_of_a_step(recording, trace, own) for trace in recording.traces]
    return {name: max(step[name] for step in steps) for name in steps[-1]}


def _of_a_step(recording: Recording, trace: Trace, own: Float8Hybrid) -> dict[str, float]:
    run = recording.run
    layers = [linear for linear in anatomy(run.model).linears if _fits(linear.module)]
    before, after = trace.before.buffers, trace.after.buffers
    with _buffers(run.model, before), _watched(layers) as seen:
        gradients = recording.gradients_at(trace.before.parameters, trace)
    too_large = {name: value * TOO_LARGE if name.endswith(".scales") else value for name, value in before.items()}
    with _buffers(run.model, too_large), _watched(layers) as clipped:
        recording.gradients_at(trace.before.parameters, trace)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    off: dict[str, float] = {}
    beyond = floating = scales_off = history_off = 0
    with recording.at(trace.before.parameters), torch.no_grad():
        for call in seen:
            w = weight_matrix(call.layer).detach()
            bias: Any = call.layer.bias
            histories = before.get(f"{call.path}.history", torch.zeros(3, 0))
            operands = (call.x, w, call.dy)
            scales = [_scale(h, t, f, own.margin) for h, t, f in zip(histories, operands, FORMATS, strict=True)]
            (p, q, g), (s, t, u) = [_rounded(*operands) for operands in zip(operands, scales, FORMATS)], scales
            dw = gradients[names[call.layer.weight]].double()  # type: ignore[index]
            added = torch.zeros(len(w)) if bias is None else bias.double()
            layer_off, layer_beyond = _products_off(call, dw, (p, q, g), (s, t, u), added)
            off |= {name: max(off.get(name, 0.0), distance) for name, distance in layer_off.items()}
            beyond += layer_beyond
            if bias is not None:
                db, sizes = gradients[names[bias]].double(), call.dy.double().abs().sum(0).norm()
                here = ((db - call.dy.double().sum(0)).norm() / sizes).item()  # the sum itself may be 0
                off["grad_bias_off"] = max(off.get("grad_bias_off", 0.0), here)
            floating += _distance(call.y.double(), call.x.double() @ w.double().T + added) < 1e-5
            recorded = before.get(f"{call.path}.scales", torch.zeros(3))
            expected = torch.stack(scales) * (histories.amax(1) > 0) if histories.numel() else torch.zeros(3)
            scales_off += int((recorded.double() != expected).sum())
            magnitudes = torch.stack([x.float().abs().amax() for x in operands])[:, None]
            remembered = torch.cat([magnitudes, histories], 1)[:, : histories.shape[1]]
            history_off += int((after.get(f"{call.path}.history", histories) != remembered).sum())
    saved = [size for call in seen for size in call.saved]
    ours_before = trace.of("backward")[0].gradients
    return {
        **off,
        "beyond_bound": beyond,
        "scales_off": scales_off,
        "scaled_amax": max(_scaled_amax(before, call.path) for call in seen),
        "history_off": history_off,
        "products_a_layer": sum(len(call.products) for call in seen) / len(layers),
        "wrong_formats": _wrong_formats(seen),
        "input_rounding": max(_relative(call.products[0][0], call.x, E4M3) for call in seen if call.products),
        "gradient_rounding": max(_relative(call.products[1][0], call.dy, E5M2) for call in seen if call.products),
        "largest_input": _largest(clipped, 0),
        "largest_gradient": _largest(clipped, 1),
        "saved_bytes_a_number": sum(size for size, _ in saved) / max(1, sum(numbers for _, numbers in saved)),
        "left_floating": floating + len(layers) - len(seen),
        "unlike_the_step": sum(not torch.equal(ours_before[name], gradient) for name, gradient in gradients.items()),
    }


def _products_off(
    layer: Seen,
    dw: Tensor,
    rounded: tuple[Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor, Tensor],
    added: Tensor,
) -> tuple[dict[str, float], int]:
    """Computes the three products' distances from those of the rounded operands in float64, by name, and how many
    values lie beyond the bound of their sums' roundings."""
    (p, q, g), (s, t, u) = rounded, scales
    products: dict[str, tuple[Tensor, Tensor, Tensor, Tensor, Any]] = {
        "output_off": (layer.y.double(), p, q, s * t, added),
        "grad_input_off": (layer.dx.double(), g, q.T, u * t, 0.0),
        "grad_weight_off": (dw.T if is_transposed(layer.layer) else dw, g.T, p.T, u * s, 0.0),
    }
    off, beyond = dict[str, float](), 0
    for name, (values, a, b, scale, more) in products.items():
        exact = a @ b.T / scale + more
        bound = (a.shape[1] + OTHER_ROUNDINGS) * ROUNDING * (a.abs() @ b.abs().T / scale + abs(more))
        beyond += int(((values - exact).abs() > bound).sum())
        off[name] = _distance(values, exact)
    return off, beyond


def _wrong_formats(seen: Sequence[Seen]) -> int:
    """Counts operands of products that are not in the format of their kind."""
    return sum(
        operand.dtype != wanted.dtype
        for layer in seen
        for pair, formats in zip(layer.products, OPERANDS)
        for operand, wanted in zip(pair, formats, strict=True)
    )


def _fits(linear: nn.Module) -> bool:
    return all(size % 16 == 0 for size in weight_matrix(linear).shape)


def _scale(history: Tensor, tensor: Tensor, wanted: Format, margin: int) -> Tensor:
    """Computes the scale of a history; where it is empty, of the tensor itself. A float32, in float64."""
    known = history.amax() if history.numel() else torch.zeros(())
    amax = (known if known > 0 else tensor.abs().amax()).double()
    return (wanted.largest / amax / 2**margin).float().double() if amax > 0 else torch.ones((), dtype=torch.float64)


def _rounded(x: Tensor, scale: Tensor, wanted: Format) -> Tensor:
    """Returns ``x`` times its scale, a float32, clipped and then rounded to the nearest number of a format; ties to
    even."""
    scaled = (x.float() * scale.float()).double().clamp(-wanted.largest, wanted.largest)
    exponent = (torch.frexp(scaled)[1] - 1).clamp(min=wanted.smallest)
    step = torch.ldexp(torch.ones_like(scaled), exponent - wanted.mantissa)
    return (scaled / step).round() * step


def _distance(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).norm() / expected.norm()).item()


def _scaled_amax(buffers: Values, path: str) -> float:
    histories = buffers.get(f"{path}.history", torch.zeros(3, 0)).double()
    if not histories.numel():
        return 1.0
    largest = torch.tensor([form.largest for form in FORMATS], dtype=torch.float64)
    return (histories.amax(1) * buffers[f"{path}.scales"].double() / largest).max().item()


def _relative(codes: Tensor, x: Tensor, wanted: Format) -> float:
    """Computes the largest relative error of a number that is neither clipped nor below the normal ones, at the scale
    that is best for all of them."""
    codes, x = codes.double(), x.double()
    inside = (codes.abs() < wanted.largest) & (codes.abs() > 2.0**wanted.smallest)
    ratios = (codes / x)[inside]
    middle = (ratios.max() + ratios.min()) / 2
    return ((ratios.max() - ratios.min()) / 2 / middle).item() if len(ratios) else 0.0


def _largest(layers: Sequence[Seen], product: int) -> float:
    """Computes the largest magnitude among the left operands of all layers' first, or second, products."""
    return max(layer.products[product][0].float().abs().max().item() for layer in layers if layer.products)


class EightBits:
    """While active, keeps the operands of products of eight bits, for the layer that runs. No dispatch mode: under
    one, a bfloat16 pass is not the recorded one to the bit."""

    layer: Seen | None = None

    def __enter__(self) -> None:
        self.product: Any = torch._scaled_mm
        torch._scaled_mm = self.scaled_mm  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        torch._scaled_mm = self.product

    def scaled_mm(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        if self.layer is not None:
            self.layer.products.append((a.clone(), b.clone()))
        result: Tensor = self.product(a, b, **options)
        return result


def _saved(output: Tensor) -> list[Tensor]:
    """Returns what the autograd function that gave ``output``, up to views and a bias, keeps for its backward pass."""
    node: Any = output.grad_fn
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        node = node.next_functions[0][0] if node.next_functions else None
    return [] if node is None else list(node.saved_tensors)


@contextmanager
def _buffers(model: nn.Module, values: Values) -> Iterator[None]:
    """The model has these buffers meanwhile."""
    own = dict(model.named_buffers())
    copies = {name: value.clone() for name, value in own.items()}
    for name, value in own.items():
        value.copy_(values[name])
    try:
        yield
    finally:
        for name, value in own.items():
            value.copy_(copies[name])


@contextmanager
def _watched(layers: Sequence[Part]) -> Iterator[list[Seen]]:
    """Collects what the layers that run meanwhile compute."""
    seen: list[Seen] = []
    products = EightBits()
    inside: list[Seen] = []

    def begins(part: Part, args: tuple[Tensor]) -> tuple[Tensor]:
        own = args[0].clone()  # its gradient is this layer's alone
        layer = Seen(part.path, part.module, {"x": own.detach()})
        seen.append(layer)
        inside.append(layer)
        products.layer = layer
        own.register_hook(lambda gradient: layer.tensors.update(dx=gradient))
        return (own,)

    def ends(part: Part, output: Tensor) -> None:
        layer = inside.pop()
        layer.tensors["y"] = output.detach().clone()
        layer.saved = [(tensor.nbytes, tensor.numel()) for tensor in _saved(output) if tensor.numel() > 1]

        def turns_back(gradient: Tensor) -> None:  # the products that follow are this layer's
            layer.tensors["dy"] = gradient
            products.layer = layer

        output.register_hook(turns_back)

    hooks = [layer.module.register_forward_pre_hook(lambda _, args, part=layer: begins(part, args)) for layer in layers]
    hooks += [layer.module.register_forward_hook(lambda _, __, y, part=layer: ends(part, y)) for layer in layers]
    try:
        with products:
            yield seen
    finally:
        for hook in hooks:
            hook.remove()
