"""Checks what recorded steps show of AC-GC: that the forward pass is exact, how far the gradients of weights are off
against what is allowed, and how many bytes are kept against what the formula asks for.

Bytes are read by the meter of saved activations around a pass of a recorded step. Gradient norms come from the recorded
gradients and from a plain pass, which has the inputs of all linear layers, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.meters.activations import SavedActivations
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.activation_compression.acgc.technique import ACGC, fixed_point, restored
from techniques.activation_compression.shared.compression_probes import one_pass

OF_ITS_BASELINES = True  # the inputs of their linear layers are saved by these alone
FINER = 16  # of the error: 2 bits
CHANNEL_BYTES = 4 + 1  # largest value and width


def records(run: Run, own: ACGC) -> bool:
    """Steps that measure norms, and the middle one."""
    return run.step % own.interval == 0 or run.step == run.recipe.steps // 2


@dataclass
class Linears:
    """Holds what a plain pass shows of the linear layers of all blocks, by path: inputs, and squared norms of the
    outputs' gradients."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    of_outputs: dict[str, float] = field(default_factory=dict)

    @property
    def shared(self) -> list[list[str]]:
        """Returns the layers that read one tensor, together."""
        by_place: dict[tuple[int, int], list[str]] = {}
        for path, x in self.inputs.items():
            by_place.setdefault((x.data_ptr(), x.numel()), []).append(path)
        return list(by_place.values())


@judged(
    "changed",
    "The forward pass is exact; only what is kept is compressed.",
    "The authors' autoquant.py: activations are coded after their use",
    id="exact_forward",
)
@judged(
    "over_bound",
    "The squared error of a layer's gradient is at most e^2 of its squared norm, so that E |g'|^2 <= (1 + e^2) V^2.",
    "The bound that convergence follows from; the paper's section was not read",
    id="bounded_error",
    at_most=1.0,
    note="the middle step, with norms that were measured before; the layer that is farthest off",
)
@judged(
    "bytes_off",
    "Each channel has the bits that the bound asks for, and takes exactly as many.",
    "The authors' autoquant.py, with 1 x 1 filters",
    id="bits_of_the_formula",
    recipes=["classic"],  # autocast makes copies
)
@judged(
    "bits_for_a_sixteenth",
    "A sixteenth of the error takes two bits more.",
    "The authors' autoquant.py: bits are half the logarithm of 1 / error",
    id="finer",
    equals=2.0,
    tolerance=0.05,
    recipes=["classic"],
    note="channels that neither error brings to an end of their range, of 2 to 16 bits",
)
@judged(
    "first_bits",
    "Before norms are known all has the most bits.",
    "This entry's variant; base_bits = 16",
    equals=16.0,
    recipes=["classic"],
)
@judged(
    "code_off",
    "Values are rounded to the nearest of their channel's fixed-point numbers.",
    "The authors' fixpoint.py",
    id="nearest",
    at_most=0.5,
    tolerance=0.001,
    scope="kernel",
)
def probes(recording: Recording, own: ACGC) -> Mapping[str, float]:
    """``over_bound`` and ``code_off`` are the largest: of a weight's gradient in the middle step, and of a value in
    units of the last bit of its channel. ``bytes_off`` counts bytes kept by a pass more or fewer than the formula asks
    for."""
    run = recording.run
    trace = next(trace for trace in recording.traces if trace.step == run.recipe.steps // 2)
    with own.around_step(run):
        ours, _ = one_pass(recording, trace)
    plain, exact = one_pass(recording, trace)
    layers = _linears(recording, trace)
    whole = _saved(recording, trace, nullcontext())
    packed = _saved(recording, trace, own.around_step(run))
    own.error /= FINER
    finer = _saved(recording, trace, own.around_step(run))
    own.error *= FINER
    free, at_an_end = map(sum, zip(*(_changes(recording, own, layers, paths) for paths in layers.shared), strict=True))
    return {
        "changed": int((ours != plain).sum()),
        "over_bound": max(
            _over_bound(trace, exact[f"{path}.weight"], f"{path}.weight", own.error) for path in layers.inputs
        ),
        "bytes_off": abs(packed - whole - sum(_added_bytes(recording, own, layers, paths) for paths in layers.shared)),
        "bits_for_a_sixteenth": (8 * (finer - packed) - at_an_end) / free,
        "first_bits": _first_bits(recording),
        "code_off": _code_off(),
    }


def _over_bound(trace: Trace, exact: Tensor, name: str, error: float) -> float:
    difference = trace.of("backward")[0].gradients[name].double() - exact.double()
    return difference.square().sum().item() / (error * exact.double().square().sum().item())


def _saved(recording: Recording, trace: Trace, context: AbstractContextManager[Any]) -> int:
    with SavedActivations(recording.run.model) as meter, context:
        recording.gradients_at(trace.before.parameters, trace)
    return meter.saved_bytes


def _linears(recording: Recording, trace: Trace) -> Linears:
    layers = Linears()
    with _listening(recording, layers):
        recording.gradients_at(trace.before.parameters, trace)
    return layers


@contextmanager
def _listening(recording: Recording, layers: Linears) -> Iterator[None]:
    def note(path: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        layers.inputs[path] = inputs[0].detach()
        output.register_hook(lambda gradient: layers.of_outputs.update({path: gradient.double().square().sum().item()}))

    handles = [
        part.module.register_forward_hook(lambda _, inputs, output, path=part.path: note(path, inputs, output))
        for part in recording.run.anatomy.linears
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _added_bytes(recording: Recording, own: ACGC, layers: Linears, paths: list[str]) -> float:
    """Counts the bytes that the input of these layers takes more than as it is."""
    x = _matrix(layers, paths)
    bits = _fraction_bits(recording, own, layers, paths).clamp(1, 15) + 1
    return bits.sum().item() * math.ceil(len(x) / 8) + CHANNEL_BYTES * x.shape[1] - 4 * x.numel()


def _changes(recording: Recording, own: ACGC, layers: Linears, paths: list[str]) -> tuple[int, float]:
    """Counts values of the input's channels that can have two bits more, and bits that those at an end have more in
    all."""
    bits = _fraction_bits(recording, own, layers, paths)
    finer = _fraction_bits(recording, own, layers, paths, FINER)
    free, tokens = (bits >= 1) & (finer <= 15), 8 * math.ceil(len(_matrix(layers, paths)) / 8)  # whole bytes
    more = finer.clamp(1, 15) - bits.clamp(1, 15)
    return int(free.sum()) * tokens, more[~free].sum().item() * tokens


def _matrix(layers: Linears, paths: list[str]) -> Tensor:
    x = layers.inputs[paths[0]].double()
    return x.reshape(-1, x.shape[-1])


def _fraction_bits(recording: Recording, own: ACGC, layers: Linears, paths: list[str], finer: int = 1) -> Tensor:
    """Computes what the formula asks for behind the point, of each channel, before it is brought into 1 to 15."""
    x = _matrix(layers, paths)
    of_weights, of_outputs = _norms(recording, own, paths)
    allowed = own.error / finer * of_weights / (2 * x.numel() * of_outputs)
    largest = x.abs().amax(0) + 1e-6
    return (-0.5 * math.log2(allowed) + largest.log2() - 1).trunc()


def _norms(recording: Recording, own: ACGC, paths: list[str]) -> tuple[float, float]:
    """Computes squared norms of the gradients of these layers' weights and outputs: of each the mean of the last
    measurements, summed."""
    measured = [trace for trace in recording.traces if trace.step % own.interval == 0][-own.history :]
    plain = [_linears(recording, trace) for trace in measured]
    recorded = [trace.of("backward")[0].gradients for trace in measured]
    of_weights = [
        parameters[f"{path}.weight"].double().square().sum().item() for parameters in recorded for path in paths
    ]
    of_outputs = [watched.of_outputs[path] for watched in plain for path in paths]
    return sum(of_weights) / len(measured), sum(of_outputs) / len(measured)


def _first_bits(recording: Recording) -> float:
    """Computes the bits of a value from the bytes of a pass before any norm is known."""
    twin = recording.twin()
    fresh = twin.run.technique.member(ACGC)
    trace = recording.traces[0]
    layers = _linears(twin, trace)
    inputs = [layers.inputs[paths[0]] for paths in layers.shared]
    channels = sum(x.shape[-1] for x in inputs)
    added = _saved(twin, trace, fresh.around_step(twin.run)) - _saved(twin, trace, nullcontext())
    columns = sum(math.ceil(x.numel() // x.shape[-1] / 8) * x.shape[-1] for x in inputs)
    return (added - CHANNEL_BYTES * channels + 4 * sum(map(torch.numel, inputs))) / columns


def _code_off() -> float:
    """Returns the largest error, in codes, of values below the channel's largest, which has no code of its own."""
    bits = torch.tensor([1, 4, 9])
    largest = torch.tensor([3.0, 0.2, 40.0])
    x = (2 * torch.rand(3, 4096, generator=torch.Generator().manual_seed(0)) - 1) * largest[:, None]
    unit = largest.double()[:, None] / 2.0 ** bits[:, None]
    error = (restored(fixed_point(x, largest, bits), largest, bits).double() - x.double()).abs() / unit
    return error[x.double() < largest.double()[:, None] - unit].max().item()
