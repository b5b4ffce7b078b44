"""The operators of a step of a stack, traced at a size that need not fit this machine, for a modelled time on a GPU.

The step is the counted one (:mod:`suite.measure.paper_scale`): tensors without values, a GPU's operators. What it does
besides its operators is noted where it is done: copies to the host's memory and back (:mod:`suite.chain.tiers`), an
optimizer's own kernel with the bytes that its bench declares, and, where something has no declared cost, that it has
none: another path of a technique's on a GPU, a thread of the host's, a collective.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import FrameType
from typing import Any

import torch
from torch._subclasses import FakeTensor

from suite.chain import tiers
from suite.contract.catalogue import catalogue
from suite.contract.run import Run
from suite.measure import compiled_graphs
from suite.measure.paper_scale import Scale, trained_at
from suite.measure.weightless import replaced
from suite.meters.operators import OperatorTrace
from suite.record.job import techniques_of
from suite.record.operators import IN, OUT, Operator, TracedStep

AS_MUCH = "OPERATORS_MOVE_AS_MUCH"
"""What a kernel's module sets to True where torch's operators, taken elsewhere, move as many bytes as the kernel."""
OWN_UPDATE = "update by the optimizer's own kernel"


def traced(stack: str, scale: Scale) -> TracedStep:
    """The operators of one step of the stack at that scale.

    Raises what :func:`suite.measure.paper_scale.trained_at` does, and RuntimeError where a step reads values.
    """
    trace = OperatorTrace()
    with compiled_graphs_marked(trace), trained_at(stack, scale) as run:
        batch = run.next_batch()
        asked = _Asked(trace)
        with trace, _transfers(trace), _host_threads(trace), asked.noted():
            run.train_step(*batch)
    step = trace.step()
    return _with_own_update(step, stack, run) if asked.optimizers else step


@contextmanager
def compiled_graphs_marked(trace: OperatorTrace) -> Iterator[None]:
    """What partitioned graphs run is marked in the trace as compiled."""
    as_it_is = compiled_graphs._as_it_is

    def marked(graph: Any, inputs: Any, **more: Any) -> Any:
        inner = as_it_is(graph, inputs, **more)

        def run(arguments: list[Any]) -> Any:
            with trace.in_compiled_graph():
                return inner(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    with replaced(compiled_graphs, "_as_it_is", marked):
        yield


# what the dispatcher does not see -----------------------------------------------------------------------------------


@contextmanager
def _transfers(trace: OperatorTrace) -> Iterator[None]:
    out, into = tiers.Tier._move_out, tiers.Tier._move_in

    def moved_out(tier: Any, storage: Any, device: Any, nbytes: int, memory: Any) -> Any:
        trace.add(Operator("to the host", OUT, trace.phase, read_bytes=nbytes, kernels=0))
        return out(tier, storage, device, nbytes, memory)

    def moved_in(tier: Any, copy: Any, storage: Any) -> Any:
        trace.add(Operator("from the host", IN, trace.phase, written_bytes=copy.nbytes, kernels=0))
        return into(tier, copy, storage)

    with replaced(tiers.Tier, "_move_out", moved_out), replaced(tiers.Tier, "_move_in", moved_in):
        yield


@contextmanager
def _host_threads(trace: OperatorTrace) -> Iterator[None]:
    worker: Any = tiers.Tier.__dict__["worker"]

    def asked(tier: Any) -> Any:
        trace.undeclared("its step works on a thread of the host's, and what that takes has no declared cost")
        return worker.__get__(tier)

    with replaced(tiers.Tier, "worker", property(asked)):
        yield


@dataclass
class _Asked:
    """Who asked whether a tensor is on a GPU: there another path is taken, which is seen nowhere else."""

    trace: OperatorTrace
    optimizers: list[Any] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        def is_cuda(_: FakeTensor) -> bool:
            self._note(sys._getframe(1))
            return False

        FakeTensor.is_cuda = property(is_cuda)  # type: ignore[assignment]
        try:
            yield
        finally:
            del FakeTensor.is_cuda

    def _note(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name in ("launchable", "<genexpr>", "<listcomp>"):
            frame = frame.f_back
        module = frame.f_globals.get("__name__", "") if frame is not None else ""
        if frame is None or module.partition(".")[0] in ("torch", "transformers", "timm"):
            return
        asking = frame.f_locals.get("self")
        if isinstance(asking, torch.optim.Optimizer):
            self.optimizers.append(asking)
        elif not _moves_as_much(module):
            where = module.removesuffix(".technique").replace(".", "/")
            self.trace.undeclared(f"on a GPU {where} takes a kernel of its own, which has no declared cost")


def _moves_as_much(module: str) -> bool:
    """Whether the kernel beside a module says that torch's operators move as many bytes."""
    for name in (f"{module}_kernel", f"{module.rpartition('.')[0]}.kernel"):
        found = importlib.util.find_spec(name) if module.count(".") else None
        if found is not None and found.origin is not None:
            with open(found.origin, encoding="utf-8") as source:  # importing it would load Triton
                return f"\n{AS_MUCH} = True\n" in source.read()
    return False


def _with_own_update(step: TracedStep, stack: str, run: Run) -> TracedStep:
    """The step, with what its optimizer's kernel declares in place of torch's operators of the update."""
    parameters = [each for each in run.model.parameters() if each.requires_grad]
    elements = sum(each.numel() for each in parameters)
    declared = _declared_bytes(stack, str(parameters[0].dtype).removeprefix("torch."))
    if declared is None:
        why = "its optimizer takes a kernel of its own, whose bench declares no bytes for these parameters"
        return replace(step, undeclared=(*step.undeclared, why))
    kept = {each: count for each, count in step if each.phase != "optimizer"}
    update = Operator(
        OWN_UPDATE, "optimizer", "optimizer", read_bytes=round(declared * elements), kernels=1, tensors=1
    )  # fmt: skip
    return replace(step, counts=type(step.counts)({**kept, update: 1}))


def _declared_bytes(stack: str, dtype: str) -> float | None:
    """Bytes that a step moves for each parameter, by the benches of the stack's techniques."""
    with ExitStack():
        for name in techniques_of(stack):
            entry = catalogue()[name]
            if (entry.folder / "peer.py").is_file():
                benches = _benches(entry.module.rpartition(".")[0] + ".peer")
                if dtype in benches:
                    return float(benches[dtype].bytes_per_element)
    return None


def _benches(module: str) -> Any:
    return import_module(module).BENCHES


Traced = Callable[[str, Scale], TracedStep]
