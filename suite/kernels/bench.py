"""Checks a kernel against its reference and times it against its peers: what a ``peer.py`` declares, and its run.

A technique with a ``kernel.py`` declares in a ``peer.py`` beside it how each entry of its ``MANIFESTS`` is checked and
timed: ``BENCHES``, name -> `Bench`. Of a step of several kernels, each has a manifest, and one bench serves them: the
manifests ``ascend`` and ``ascend:norm`` both belong to the bench ``ascend``. A manifest is one form of a kernel, by its
constants and the types of its pointers, and what a bench shows holds for the forms that it has launched: which these
are is watched. (``peer.py`` is not part of a technique's hash: no record becomes stale by it.)

Interpreting is decided before a kernel is imported, so `examinations` runs `examine` in a process of its own
(``python -m suite.kernels.bench PEER_MODULE DEVICE MODE``).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from suite.kernels.manifest import Manifest
from suite.process.programs import finished

Inputs = dict[str, list[Tensor]]
Prepare = Callable[[Inputs], Callable[[], object]]

CHECKED_SIZES = (1, 3, 0, 15, 511, 513, 2048, 4096 + 77, 8192)
LAUNCHED = (333, 1000)
TINY = 16
EXAMINATION_LIMIT_S = 600
REPETITIONS, LAUNCHES = 30, 7
PRODUCT = 8192  # rows and columns of the matrices whose product's rate is the floor's
FLUSH_BYTES = 2 * 2**30  # far over any L2; writing it takes the GPU half a millisecond, in which the host runs ahead


def transformer_sizes() -> list[int]:
    """Returns the elements of the tensors of GPT-2's smallest model (124 million in 148): what a step is timed on."""
    width, layers, vocabulary, context = 768, 12, 50257, 1024
    norm = [width, width]
    attention = [3 * width * width, 3 * width, width * width, width]
    mlp = [4 * width * width, 4 * width, 4 * width * width, width]
    return [vocabulary * width, context * width, *(norm + attention + norm + mlp) * layers, *norm]


@dataclass(frozen=True)
class Bench:
    """Says how the kernel of one manifest is checked and timed.

    ``make(sizes, device, generator)`` gives named lists of random tensors, the i-th of each with ``sizes[i]`` elements.
    ``kernel(inputs)`` prepares (launch tables, settings), and gives what runs one step in place on ``inputs``; a list
    that a step creates, it puts there. ``reference(inputs)`` gives in float64 what lists hold after one step, and
    leaves ``inputs`` as they are. ``tolerance`` bounds the difference in rounding units (a dtype's epsilon, times the
    reference or its root mean square over the list, whichever is larger). ``bytes_per_element`` must move in a step,
    and of ``timed_sizes`` tensor cores must compute ``flops_per_element``: the longer of both is the floor.
    ``peers`` prepare as ``kernel`` does; one that cannot run here raises, and says why. ``multi_tensor`` kernels take
    whole lists in one launch, through launch tables; others launch for each tensor. ``timed_sizes`` are the elements of
    the tensors that a step is timed on; ``checked_sizes``, of the one that is checked, by an interpreter that is slow.
    ``unpack(inputs)``, after a step that is checked and not timed, makes of a list that it left packed what the
    reference has.
    """

    make: Callable[[Sequence[int], torch.device, torch.Generator], Inputs]
    kernel: Prepare
    reference: Callable[[Inputs], Inputs]
    tolerance: float
    bytes_per_element: float
    peers: Mapping[str, Prepare] = field(default_factory=dict)
    multi_tensor: bool = True
    timed_sizes: Sequence[int] = field(default_factory=transformer_sizes)
    checked_sizes: Sequence[int] = CHECKED_SIZES
    flops_per_element: float = 0.0
    unpack: Callable[[Inputs], object] = lambda inputs: None


@dataclass(frozen=True)
class BenchTiming:
    """Holds a bench's times on a GPU. ``peers`` are theirs over the kernel's, or why there is none; ``launch_s`` is for
    each number of tensors; ``flops_per_s`` are those that the bench says must be computed, 0 where it says none."""

    time_s: float
    elements: int
    copy_bytes_per_s: float
    floor_share: float
    peers: Mapping[str, float | str]
    launch_s: Mapping[str, float]
    flops_per_s: float = 0.0


@dataclass(frozen=True)
class Examination:
    """Records what running a bench showed: the error in rounding units against its tolerance, or what went wrong
    instead. ``launched`` are the names of the manifests whose form has run."""

    tolerance: float
    bytes_per_element: float
    error_units: float | None = None
    trouble: str = ""
    timing: BenchTiming | None = None
    launched: tuple[str, ...] = ()


def random_lists(
    sizes: Sequence[int], device: torch.device, generator: torch.Generator, **dtypes: torch.dtype
) -> Inputs:
    """Returns a list of normal tensors for each name, in its dtype: what `Bench.make` usually starts with."""
    return {
        name: [torch.randn(size, device=device, generator=generator).to(dtype) for size in sizes]
        for name, dtype in dtypes.items()
    }


def with_gradients(inputs: Inputs) -> list[nn.Parameter]:
    """Returns ``inputs["parameters"]`` with ``inputs["gradients"]``, as optimizers of other libraries take them."""
    parameters = [nn.Parameter(tensor) for tensor in inputs["parameters"]]
    for parameter, gradient in zip(parameters, inputs["gradients"], strict=True):
        parameter.grad = gradient
    return parameters


def error_units(inputs: Inputs, expected: Inputs) -> float:
    """Returns the largest difference of a list of ``inputs`` from ``expected``, in the rounding units that `Bench`
    names.

    Raises ArithmeticError where one has a NaN, or an infinity, that the other has not.
    """
    worst = 0.0
    for name, references in expected.items():
        squares = [reference.square().sum() for reference in references]
        typical = (sum(squares, torch.tensor(0.0)) / max(1, sum(map(Tensor.numel, references)))).sqrt().item()
        for got, reference in zip(inputs[name], references, strict=True):
            if got.numel() == 0:
                continue
            unit = torch.finfo(got.dtype).eps * reference.abs().clamp(min=typical)
            difference = torch.where(got.double() == reference, 0.0, (got.double() - reference).abs() / unit)
            difference = torch.where(got.isnan() & reference.isnan(), 0.0, difference)
            if not difference.isfinite().all():
                raise ArithmeticError(
                    f"{name} have a NaN or infinity where the reference has none, or none where it has"
                )
            worst = max(worst, difference.max().item())
    return worst


def misaligned(inputs: Inputs) -> Inputs:
    """Copies of ``inputs`` one element past an aligned address, where no wide access is allowed."""
    return {
        name: [torch.cat([tensor.new_zeros(1), tensor])[1:] for tensor in tensors] for name, tensors in inputs.items()
    }


POINTEES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}


def has_form(arguments: Mapping[str, Any], manifest: Manifest) -> bool:
    """Tells whether a launch with these arguments is of the manifest's form: by its constants, and the types of
    pointers."""
    for name, value in manifest.constants.items():
        argument, _, part = name.partition(".")
        given = arguments.get(argument, value)
        given = getattr(given, part) if part and argument in arguments else given
        if (given is None) != (value is None) or (value is not None and given != value):
            return False
    pointers = {name: kind for name, kind in manifest.signature.items() if kind[:1] == "*"}
    return all(
        pointers[name] == f"*{POINTEES.get(given.dtype, '')}"
        for name, given in arguments.items()
        if isinstance(given, Tensor) and name in pointers
    )


@contextmanager
def watched(manifests: Mapping[str, Manifest]) -> Iterator[list[str]]:
    """Collects the names of the manifests whose form is launched inside."""
    launched: list[str] = []
    own: dict[int, dict[str, Manifest]] = {}
    for name, manifest in manifests.items():
        own.setdefault(id(manifest.kernel), {})[name] = manifest
    kernels = {id(manifest.kernel): manifest.kernel for manifest in manifests.values()}

    def noting(key: int) -> Callable[..., None]:
        def note(*args: Any, **kwargs: Any) -> None:
            arguments = dict(zip(kernels[key].arg_names, args, strict=False)) | kwargs
            left = {name: manifest for name, manifest in own[key].items() if name not in launched}
            launched.extend(name for name, manifest in left.items() if has_form(arguments, manifest))

        return note

    hooks = {key: noting(key) for key in kernels}
    for key, kernel in kernels.items():
        kernel.pre_run_hooks.append(hooks[key])
    try:
        yield launched
    finally:
        for key, kernel in kernels.items():
            kernel.pre_run_hooks.remove(hooks[key])


def examine(
    bench: Bench, device: torch.device, timed: bool, manifests: Mapping[str, Manifest] | None = None
) -> Examination:
    """Check ``bench`` on ``device``, and time it if ``timed`` (on a GPU only); ``manifests`` are those that it may
    launch."""
    with watched(manifests or {}) as launched:
        examination = _examined(bench, device, timed)
    return replace(examination, launched=tuple(launched))


def _examined(bench: Bench, device: torch.device, timed: bool) -> Examination:
    known: dict[str, Any] = {"tolerance": bench.tolerance, "bytes_per_element": bench.bytes_per_element}
    worst = 0.0
    try:
        aligned = bench.make(bench.checked_sizes, device, torch.Generator(device).manual_seed(0))
        for inputs in (misaligned(aligned), aligned):
            expected = bench.reference(inputs)
            bench.kernel(inputs)()
            bench.unpack(inputs)
            worst = max(worst, error_units(inputs, expected))
        if not worst <= bench.tolerance:
            return Examination(
                **known, error_units=worst, trouble=f"off by {worst:.3g} rounding units, over {bench.tolerance}"
            )
    except Exception as error:  # a kernel's or its declaration's own fault, whatever it is: a row, never a lost report
        return Examination(**known, trouble=f"{type(error).__name__}: {error}")
    return Examination(**known, error_units=worst, timing=timed_bench(bench, device) if timed else None)


def timed_bench(bench: Bench, device: torch.device) -> BenchTiming:
    """Time ``bench`` on a GPU: random data, L2 flushed before each step, medians."""
    generator = torch.Generator(device).manual_seed(1)
    sizes = bench.timed_sizes
    inputs = bench.make(sizes, device, generator)
    time_s = device_time_s(bench.kernel(inputs), device)
    peers: dict[str, float | str] = {}
    for name, prepare in bench.peers.items():
        try:
            peers[name] = device_time_s(prepare(inputs), device) / time_s
        except Exception as error:  # somebody else's code
            peers[name] = f"unavailable ({error or type(error).__name__})"
    launch_s = {
        str(count): host_time_s(bench.kernel(bench.make([TINY] * count, device, generator)), device)
        for count in LAUNCHED
    }
    bandwidth = copy_bytes_per_s(device)
    floor_s = bench.bytes_per_element * sum(sizes) / bandwidth
    flops = bench.flops_per_element * sum(sizes)
    if flops:
        floor_s = max(floor_s, flops / product_flops_per_s(device))
    return BenchTiming(time_s, sum(sizes), bandwidth, floor_s / time_s, peers, launch_s, flops / time_s)


def copy_bytes_per_s(device: torch.device) -> float:
    """Returns the bytes read and written a second by torch's copy of a GiB of random numbers."""
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / device_time_s(lambda: target.copy_(source), device)


def product_flops_per_s(device: torch.device) -> float:
    """Returns the FLOPs a second of torch's product of two square bfloat16 matrices of random numbers."""
    a, b = torch.randn(2, PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16)
    return 2 * PRODUCT**3 / device_time_s(lambda: a @ b, device)


def device_time_s(step: Callable[[], object], device: torch.device) -> float:
    """Returns the median time of ``step`` between two events on the GPU, L2 flushed before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    for _ in range(3):
        step()
    times_ms = []
    for _ in range(REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        flush.zero_()
        begin.record()
        step()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return statistics.median(times_ms) / 1000


def host_time_s(step: Callable[[], object], device: torch.device) -> float:
    """Returns the median time that the host spends in ``step``, the GPU idle before each."""
    times_s = []
    for _ in range(3 + LAUNCHES):
        torch.cuda.synchronize(device)
        begin_s = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - begin_s)
    torch.cuda.synchronize(device)
    return statistics.median(times_s[3:])


def examinations(module: str, device: str, timed: bool) -> dict[str, Examination]:
    """Returns what `examine` says of the ``BENCHES`` of ``module``, by name, in a process of its own.

    Raises RuntimeError, with why, where that process gives no answer.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "suite.kernels.bench", module, device, "timed" if timed else "checked"]
    try:
        done = finished(command, environment, EXAMINATION_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {EXAMINATION_LIMIT_S} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(f"cannot be examined: {last[0]}")
    return {name: _parsed(load) for name, load in json.loads(done.stdout.splitlines()[-1]).items()}


def _parsed(values: dict[str, Any]) -> Examination:
    timing, launched = values.pop("timing"), tuple(values.pop("launched"))
    return Examination(**values, launched=launched, timing=BenchTiming(**timing) if timing else None)


def _main(module: str, device: str, mode: str) -> None:
    benches: Mapping[str, Bench] = import_module(module).BENCHES
    manifests = import_module(module.removesuffix("peer") + "kernel").MANIFESTS
    examined = {}
    for name, bench in benches.items():
        own = {key: manifest for key, manifest in manifests.items() if key.partition(":")[0] == name}
        examined[name] = asdict(examine(bench, torch.device(device), mode == "timed", own))
    print(json.dumps(examined))


if __name__ == "__main__":
    _main(*sys.argv[1:])
