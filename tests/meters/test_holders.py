"""Planted holders of memory that no operator of the counted step touches: each is counted, to the byte, where it is."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from suite.measure.at_scale.weightless import weightless
from suite.meters.counters import count_step
from suite.meters.holders import Living
from suite.record.schema import Counters

KEPT: list[Any] = []  # a module's global
BYTES = 4 * 250_000


class Holder:
    """A technique's object that has something."""

    def __init__(self, something: Any) -> None:
        self.something = something


def counted(hold: Callable[[], Any], device: str = "cpu") -> Counters:
    """A step of SGD on a small model, of a run that holds what ``hold`` returns; on a pretended GPU without the way
    back, which autograd makes on a real one alone."""
    before = Living()
    model = nn.Linear(8, 8, device=device)
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(4, 8, device=device)
    held = hold()

    def step() -> None:
        optimizer.zero_grad()
        with torch.set_grad_enabled(device == "cpu"):
            loss = model(batch).sum()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()

    step()
    with before.left_out():
        counters = count_step(step, model, optimizer, batch)
    del held
    return counters


def a_tensor() -> Tensor:
    return torch.zeros(250_000)


def in_a_global() -> None:
    KEPT.append(a_tensor())


def in_a_closure() -> Callable[[], Tensor]:
    tensor = a_tensor()
    return lambda: tensor


def in_a_suspended_generator() -> Iterator[None]:
    @contextmanager
    def averaged() -> Iterator[None]:
        tensor = a_tensor()
        yield
        del tensor

    entered = averaged()
    entered.__enter__()
    return entered  # type: ignore[return-value]


def in_a_module_that_is_not_the_model() -> nn.Module:
    return nn.Linear(250_000, 1, bias=False)


def in_views() -> list[Tensor]:
    """The storage counts, whole and once."""
    tensor = a_tensor()
    return [tensor[:10], tensor[5:7].view(2, 1)]


def of_an_array_that_tensors_share() -> list[Any]:
    array = np.zeros(250_000, np.float32)
    return [array, torch.from_numpy(array), array[10:]]


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


@pytest.fixture(scope="module")
def nothing() -> Counters:
    return counted(lambda: None)


TENSORS = [
    lambda: Holder([{"weights": a_tensor()}]),
    in_a_global,
    in_a_closure,
    in_a_suspended_generator,
    in_a_module_that_is_not_the_model,
    in_views,
    of_an_array_that_tensors_share,
    lambda: a_tensor().share_memory_(),
    lambda: nn.Parameter(a_tensor()),
    lambda: partial(print, a_tensor()),
]


@pytest.mark.parametrize("hold", TENSORS)
def test_tensors_are_other_whoever_holds_them(hold: Callable[[], Any], nothing: Counters) -> None:
    counters = counted(hold)
    assert counters.peak_by_kind == nothing.peak_by_kind | {"other": nothing.peak_by_kind["other"] + BYTES}
    assert counters.peak_tensor_bytes == nothing.peak_tensor_bytes + BYTES
    assert counters.host_bytes == nothing.host_bytes == 0


class Shared:
    """Shared memory, which ends with it."""

    def __init__(self) -> None:
        self.memory = SharedMemory(create=True, size=BYTES)

    def __del__(self) -> None:
        self.memory.close()
        self.memory.unlink()


def mapped(path: Path) -> np.ndarray[Any, Any]:
    return np.memmap(path, np.uint8, "w+", shape=(BYTES,))[10:]


ARRAYS = [
    lambda path: {"moments": np.zeros(250_000, np.float32)},
    lambda path: np.zeros(250_000, np.float32)[::3][1:],
    lambda path: [np.zeros((500, 500), np.float32).T],
    lambda path: bytearray(BYTES),
    lambda path: Shared(),
    mapped,
    lambda path: mmap.mmap(-1, BYTES),
    lambda path: np.frombuffer(bytearray(BYTES), np.int16),
]


@pytest.mark.parametrize("hold", ARRAYS)
def test_arrays_and_mapped_memory_are_on_the_host(
    hold: Callable[[Path], Any], nothing: Counters, tmp_path: Path
) -> None:
    page = mmap.PAGESIZE
    counters = counted(lambda: Holder(hold(tmp_path / "mapped")))
    assert counters.peak_by_kind == nothing.peak_by_kind
    assert counters.host_bytes in (BYTES, -(-BYTES // page) * page), "to the byte, or to the page that is mapped"


def test_what_was_there_before_is_no_part_of_the_run(nothing: Counters) -> None:
    theirs = [a_tensor(), np.zeros(1000), bytearray(1000)]
    assert counted(lambda: theirs[0]) == nothing


def test_what_a_kind_has_is_not_held_beside() -> None:
    before = Living()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.zeros(4, 8)
    model(batch).sum().backward()
    optimizer.step()
    with before.left_out():
        counters = count_step(optimizer.step, model, optimizer, batch)
    state = 2 * 4 * (8 * 8 + 8)
    expected = {"parameters": 288, "gradients": 288, "optimizer_state": state, "inputs": 128, "other": 8}
    assert {kind: counters.peak_by_kind[kind] for kind in expected} == expected, "the other are two step counters"


def test_looking_keeps_nothing_alive() -> None:
    """The gradients of the step before end with its beginning."""
    model = nn.Linear(500, 500)
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(4, 500)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    step()
    plain = count_step(step, model, optimizer, batch)
    with Living().left_out():
        assert count_step(step, model, optimizer, batch) == plain.model_copy(update={"host_bytes": 0})


def test_nothing_is_said_of_a_host_where_nobody_took_stock() -> None:
    model = nn.Linear(8, 8)
    counters = count_step(lambda: model(torch.zeros(4, 8)).sum().backward(), model, None, None)
    assert counters.host_bytes is None


def test_tensors_without_values_count_as_those_with_some(nothing: Counters) -> None:
    with weightless():
        counters = counted(lambda: Holder(a_tensor()))
        none = counted(lambda: None)
    assert counters.peak_tensor_bytes == none.peak_tensor_bytes + BYTES
    assert none.peak_by_kind == nothing.peak_by_kind


def test_tensors_of_a_trace_take_no_memory(nothing: Counters) -> None:
    with FakeTensorMode():
        traced = [a_tensor()]
    assert counted(lambda: traced[:]) == nothing
    assert counted(lambda: torch.empty(250_000, device="meta")) == nothing


def test_of_a_run_on_a_gpu_the_host_s_tensors_stand_apart() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_both = counted(lambda: [a_tensor(), torch.zeros(1000, device="cuda")], "cuda")
        none = counted(lambda: None, "cuda")
    assert none.host_bytes == 0
    assert on_both.host_bytes == BYTES
    assert on_both.peak_tensor_bytes == none.peak_tensor_bytes + 4000
