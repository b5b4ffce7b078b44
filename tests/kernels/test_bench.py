"""Benches: faults planted in a kernel are seen and named; rounding units, the share of the floor, peers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from suite.kernels import bench
from suite.kernels.bench import (
    Bench,
    BenchTiming,
    Inputs,
    Prepare,
    error_units,
    examine,
    has_form,
    misaligned,
    random_lists,
    timed_bench,
    with_gradients,
)
from suite.kernels.manifest import Manifest

CPU = torch.device("cpu")
EPS = torch.finfo(torch.float32).eps


def _make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    return random_lists(sizes, device, generator, x=torch.float32, y=torch.float32)


def _reference(inputs: Inputs) -> Inputs:
    return {"x": [x.double() + y.double() for x, y in zip(inputs["x"], inputs["y"])]}


def _add(inputs: Inputs) -> object:
    return lambda: [x.add_(y) for x, y in zip(inputs["x"], inputs["y"])]


BENCH = Bench(_make, _add, _reference, tolerance=1, bytes_per_element=12)


def test_a_right_kernel_is_off_by_its_rounding() -> None:
    examination = examine(BENCH, CPU, timed=False)
    assert examination.trouble == ""
    assert examination.error_units is not None and 0.1 < examination.error_units <= 0.5


def _right_where_aligned(inputs: Inputs) -> object:
    """Right where wide accesses are allowed, wrong elsewhere."""
    aligned = all(x.data_ptr() % 16 == 0 for x in inputs["x"] if x.numel())
    return lambda: [x.add_(y) for x, y in zip(inputs["x"], inputs["y"])] if aligned else None


def _spoil(number: int, value: float) -> object:
    def prepare(inputs: Inputs) -> object:
        def step() -> None:
            for x, y in zip(inputs["x"], inputs["y"]):
                x.add_(y)
            inputs["x"][number][-1] = value

        return step

    return prepare


def _raises(inputs: Inputs) -> object:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda inputs: lambda: None, "rounding units, over 1"),
        (_right_where_aligned, "rounding units, over 1"),
        (_spoil(-1, 1e9), "rounding units, over 1"),
        (_spoil(-2, float("nan")), "NaN or infinity"),
        (_spoil(-2, float("inf")), "NaN or infinity"),
        (_raises, "RuntimeError: no such thing"),
    ],
)
def test_a_wrong_kernel_is_seen(fault: Prepare, words: str) -> None:
    assert words in examine(replace(BENCH, kernel=fault), CPU, timed=False).trouble


def test_rounding_units() -> None:
    one = torch.ones(4, dtype=torch.float64)
    assert error_units({"x": [one.float() + EPS]}, {"x": [one]}) == pytest.approx(1)
    assert error_units({"x": [one.bfloat16() * 1.5]}, {"x": [one]}) == pytest.approx(0.5 * 2**7)
    small = torch.tensor([1.0, 0.0], dtype=torch.float64)  # beside it, a zero is measured by the list
    assert error_units({"x": [small.float() + torch.tensor([0, EPS])]}, {"x": [small]}) == pytest.approx(2**0.5)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1])
    assert error_units({"x": [special], "y": []}, {"x": [special.double()], "y": []}) == 0


def test_misaligned_copies_are_equal_and_nowhere_aligned() -> None:
    inputs = {"x": [torch.randn(5), torch.randn(0), torch.randn(64)]}
    copies = misaligned(inputs)
    assert all(map(torch.equal, copies["x"], inputs["x"]))
    assert all(copy.data_ptr() % 16 for copy in copies["x"] if copy.numel())


def test_the_sizes_timed_are_gpt_2s() -> None:
    sizes = bench.transformer_sizes()
    assert (len(sizes), sum(sizes)) == (148, 124_439_808)


def test_share_of_the_floor_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says 2 ms for the kernel and 1 ms for what copies or competes."""

    def missing(inputs: Inputs) -> Prepare:
        raise ImportError("No module named 'apex'")

    times_s = {"kernel": 2e-3, "peer": 1e-3}
    monkeypatch.setattr(bench, "device_time_s", lambda step, device: times_s[step()])
    monkeypatch.setattr(bench, "copy_bytes_per_s", lambda device: 12e6)
    monkeypatch.setattr(bench, "host_time_s", lambda step, device: 5e-5)
    peers = {"quick": lambda inputs: lambda: "peer", "apex": missing}
    timing = timed_bench(
        replace(BENCH, kernel=lambda inputs: lambda: "kernel", peers=peers, timed_sizes=[100, 900]), CPU
    )
    assert timing == BenchTiming(
        time_s=2e-3,
        elements=1000,
        copy_bytes_per_s=12e6,
        floor_share=0.5,
        peers={"quick": 0.5, "apex": "unavailable (No module named 'apex')"},
        launch_s={"333": 5e-5, "1000": 5e-5},
    )


def test_a_peers_gradients_are_the_kernels() -> None:
    inputs: Inputs = {"parameters": [torch.ones(2)], "gradients": [torch.full((2,), 3.0)]}
    (parameter,) = with_gradients(inputs)
    grad: Tensor | None = parameter.grad
    assert grad is not None and grad.data_ptr() == inputs["gradients"][0].data_ptr()
    assert parameter.data_ptr() == inputs["parameters"][0].data_ptr()


class _Sizes(NamedTuple):
    rows: object
    groups: object


def test_a_form_is_known_by_a_part_of_a_tuple_too() -> None:
    manifest = Manifest(
        kernel=None,
        signature={"x": "*fp32", "sizes": _Sizes("i32", "constexpr")},
        constants={"sizes.groups": 1},
        elements_per_program=1,
    )
    assert has_form({"x": torch.zeros(1), "sizes": _Sizes(4, 1)}, manifest)
    assert not has_form({"x": torch.zeros(1), "sizes": _Sizes(4, 2)}, manifest)
    assert not has_form({"x": torch.zeros(1, dtype=torch.bfloat16), "sizes": _Sizes(4, 1)}, manifest)
