"""Signatures of traced steps against operators worked out by hand, with values and without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.measure.at_scale.weightless import weightless
from suite.measure.contenders.compiled_graphs import partitioned_graphs
from suite.meters.operators import OperatorTrace
from suite.record.operator_counts import Operator, TracedStep, deepened
from suite.topics.modelled_time.traced import compiled_graphs_marked


def one(step: TracedStep, name: str, phase: str = "forward") -> tuple[Operator, int]:
    found = [(each, count) for each, count in step if each.name == name and each.phase == phase]
    assert len(found) == 1, found
    return found[0]


def test_a_product_by_hand() -> None:
    a, b = torch.zeros(6, 16), torch.zeros(16, 24)
    with OperatorTrace() as trace:
        _ = a @ b
        _ = a @ b
    product, count = one(trace.step(), "mm")
    assert count == 2
    assert product.product == (1, 6, 24, 16) and product.shapes == ((6, 16), (16, 24)) and product.aligned
    assert product.flops == 2 * 6 * 16 * 24
    assert (product.read_bytes, product.written_bytes) == (4 * (6 * 16 + 16 * 24), 4 * 6 * 24)
    assert trace.step().launches == 2


def test_what_is_expanded_is_read_once_and_a_target_that_is_only_written_is_not_read() -> None:
    row, whole, target = torch.zeros(1, 8), torch.zeros(32, 8), torch.zeros(32, 8)
    with OperatorTrace() as trace:
        torch.add(whole, row.expand(32, 8), out=target)
        target.copy_(whole)
    added, _ = one(trace.step(), "add")
    assert (added.read_bytes, added.written_bytes) == (4 * (256 + 8), 4 * 256)
    copied, _ = one(trace.step(), "copy_")
    assert (copied.read_bytes, copied.written_bytes) == (4 * 256, 4 * 256)


def test_a_lookup_reads_what_it_writes_and_no_whole_table() -> None:
    table, at = torch.zeros(1000, 4), torch.zeros(3, dtype=torch.int64)
    with OperatorTrace() as trace:
        F.embedding(at, table)
    looked_up, _ = one(trace.step(), "embedding")
    assert looked_up.written_bytes == 4 * 12 and looked_up.read_bytes <= 4 * 12 + 8 * 3


def train(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def test_phases() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with OperatorTrace() as trace:
        train(model, torch.zeros(4, 8), optimizer)
    phases = {each.phase: sum(1 for other, _ in trace.step() if other.phase == each.phase) for each, _ in trace.step()}
    assert set(phases) == {"forward", "backward", "optimizer"}
    updated = [each for each, _ in trace.step() if each.phase == "optimizer" and each.kind == "optimizer"]
    assert updated and all(each.tensors >= 2 and each.shapes == () for each in updated)


def stack(layers: int) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers))), torch.zeros(4, 16)


def step_of_depth(layers: int) -> TracedStep:
    with weightless("cuda"):
        model, x = stack(layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        train(model, x, optimizer)
        with OperatorTrace() as trace:
            train(model, x, optimizer)
    return trace.step()


def test_two_depths_give_every_other_one() -> None:
    grown, real = deepened(step_of_depth(3), step_of_depth(4), 5), step_of_depth(9)
    for quantity in ("flops", "launches", "moved_bytes"):
        assert getattr(grown, quantity) == getattr(real, quantity)
    assert grown.counts == real.counts


def test_a_step_survives_its_file() -> None:
    step = step_of_depth(3)
    again = TracedStep.from_json(step.as_json())
    assert again == step and again.as_json() == step.as_json()
    assert len(step.as_json()) < 20_000
    with pytest.raises(ValueError, match="not a traced step"):
        TracedStep.from_json("{}")


def test_neighbours_that_inductor_fuses_are_one_kernel_that_reads_and_writes_once() -> None:
    trace = OperatorTrace()
    with compiled_graphs_marked(trace), weightless("cuda"), partitioned_graphs():
        function = torch.compile(Pointwise())
        x = torch.empty(1024)
        function(x)
        with trace:
            function(x)
    fused = [(each, count) for each, count in trace.step() if each.kind == "fused"]
    assert len(fused) == 1
    assert (fused[0][0].read_bytes, fused[0][0].written_bytes, fused[0][0].kernels) == (4096, 4096, 1)


class Pointwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 2 + 1)


def test_a_kernel_of_somebody_elses_has_no_declared_cost() -> None:
    with torch.library._scoped_library("somebody", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x.clone(), "CompositeExplicitAutograd")
        with OperatorTrace() as trace:
            torch.ops.somebody.twice(torch.zeros(2))
    assert trace.step().undeclared == ("the kernel somebody::twice has no declared bytes and FLOPs",)
