"""Every Triton kernel on a GPU against its peers, on the parameters of a GPT-2 of 124 million, caches flushed.

The kernels, data and peers are those of ``leantrain kernels``: ``BENCHES`` in the ``peer.py`` beside a ``kernel.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from suite.entries.catalogue import catalogue
from suite.kernels.bench import FLUSH_BYTES, Bench, transformer_sizes
from suite.loop.technique import Unavailable

ROUNDS = 30
WARMUP = 3


def cases() -> Iterator[Any]:
    """Technique, its bench, and who does the step: the kernel itself, or a peer."""
    for entry in catalogue().values():
        if not (entry.folder / "peer.py").is_file() or find_spec("triton") is None:
            continue
        benches = getattr(import_module(entry.module.removesuffix("technique") + "peer"), "BENCHES", {})
        for name, bench in benches.items():
            for who in ("kernel", *bench.peers):
                yield pytest.param(bench, who, f"{entry.id}/{name}", id=f"{entry.id}-{name}-{who.replace(' ', '_')}")


@pytest.mark.parametrize(("bench", "who", "kernel"), cases())
def test_kernel(
    benchmark: Any,
    bench: Bench,
    who: str,
    kernel: str,
    gpu: torch.device,
    with_floor: Callable[..., Mapping[str, Any]],
) -> None:
    sizes = transformer_sizes()
    inputs = bench.make(sizes, gpu, torch.Generator(gpu).manual_seed(1))
    prepare = bench.kernel if who == "kernel" else bench.peers[who]
    try:
        run = prepare(inputs)
        run()
    except (ImportError, Unavailable) as error:
        pytest.skip(f"{who}: {error}")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=gpu)

    def flushed() -> None:
        flush.zero_()
        torch.cuda.synchronize()

    def step() -> None:
        run()
        torch.cuda.synchronize()

    benchmark.group = f"{kernel} on {sum(sizes):,} elements"
    benchmark.pedantic(step, setup=flushed, rounds=ROUNDS, warmup_rounds=WARMUP)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    benchmark.extra_info |= {
        "kernel": kernel,
        "who": who,
        "device": torch.cuda.get_device_name(),
        "peak_tensor_bytes": sum(tensor.nbytes for tensors in inputs.values() for tensor in tensors),
        "cuda_peak_beyond_inputs_bytes": torch.cuda.max_memory_allocated() - before,
        "flops": "unavailable: a Triton kernel passes no counter",
        **with_floor(benchmark, "cuda", bench.bytes_per_element * sum(sizes)),
    }
