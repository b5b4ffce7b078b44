"""Traces the operators of a step of a stack at a size that need not fit this machine, for a modelled time on a GPU.

The step is the counted one (:mod:`suite.measure.at_scale.full_size`): tensors without values, a GPU's operators. What
it does besides its operators is noted where it is done: copies to the host's memory and back
(:mod:`suite.chain.tiers`), an optimizer's own kernel with the bytes that its bench declares, and, where something has
no declared cost, that it has none: another path of a technique's on a GPU, a thread of the host's, a rank that waits
for another's message. Collectives are operators of the step, with their bytes and ranks; GPUs fill one node after the
other.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses import FakeTensor

from suite.chain import tiers
from suite.entries.catalogue import catalogue, reference_of
from suite.entries.sources import code_of
from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import (
    Asking,
    Scale,
    SideBySide,
    StepCount,
    compared_with,
    here,
    trained_at,
    why_not,
)
from suite.measure.at_scale.weightless import replaced
from suite.measure.contenders import compiled_graphs
from suite.measure.contenders.world import is_distributed
from suite.measure.provenance import Progress, silent
from suite.meters.operators import OperatorTrace
from suite.process.child import ContenderFailed
from suite.record.job import Setting, Spelling, Task, canonical
from suite.record.operator_counts import IN, OUT, Operator, TracedStep
from suite.record.placed import CountPlace
from suite.topics.modelled_time import gpu_times, step_traces
from suite.topics.modelled_time.devices import Gpu
from suite.topics.modelled_time.gpu_links import NODES, collectives_of, fabric_of, sent
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from suite.topics.modelled_time.modelled import PROVENANCE, TIME_FAR, UNSEEN, Band, Change, believed, time_on
from suite.topics.modelled_time.reserved import AllocationOrder
from suite.topics.modelled_time.roofline import DEFAULT, ModelledStep, Software, change_between, modelled, widest
from suite.topics.modelled_time.step_traces import KeptTrace

COSTS = "COSTS_OF_OPERATORS"
"""What a kernel's module calls the costs of the operators by which torch's dispatcher sees its kernels: a function by
an operator's name that completes the traced one. Where it has them a step goes the way of a GPU."""
AS_MUCH = "OPERATORS_MOVE_AS_MUCH"
"""What a kernel's module sets to True where torch's operators, taken elsewhere, move as many bytes as the kernel."""
Tracing = Callable[[str, Scale], TracedStep]
Costs = Mapping[str, Callable[[Operator], Operator]]
OWN_UPDATE = "update by the optimizer's own kernel"


def traced(stack: str, scale: Scale) -> TracedStep:
    """Returns the operators of one step of the stack at that scale.

    Raises what :func:`suite.measure.at_scale.full_size.trained_at` does, and RuntimeError where a step reads values.
    """
    trace = OperatorTrace()
    with compiled_graphs_marked(trace), trained_at(stack, scale) as run:
        return trace_step(run, trace)


def trace_step(run: Run, trace: OperatorTrace) -> TracedStep:
    """Returns the operators of one more step of a run whose tensors have no values. Raises RuntimeError where it reads
    some."""
    batch = run.next_batch()
    asked = _Asked(trace)
    order = AllocationOrder().seed(run.model, run.optimizer, batch)
    with order if not run.recipe.compile else nullcontext(), trace, beside_the_dispatcher(trace), asked.noted():
        run.train_step(*batch)
    step = replace(_costed(trace.step(), asked.costs), ranks=run.world_size, reserved_bytes=order.reserved_bytes)
    return _with_own_update(step, run.job.stack, run) if asked.optimizers else step


@contextmanager
def compiled_graphs_marked(trace: OperatorTrace) -> Iterator[None]:
    """Marks in the trace, as compiled, what partitioned graphs run."""
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
def beside_the_dispatcher(trace: OperatorTrace) -> Iterator[None]:
    """While active, copies to the host's memory and back are noted in the trace, and so is work on a thread of the
    host's."""
    with _transfers(trace), _host_threads(trace):
        yield


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
    """Notes who asked whether a tensor is on a GPU: there another path is taken, which is seen nowhere else unless the
    dispatcher sees its kernels, of known ``costs``."""

    trace: OperatorTrace
    optimizers: list[Any] = field(default_factory=list)
    costs: dict[str, Callable[[Operator], Operator]] = field(default_factory=dict)

    @contextmanager
    def noted(self) -> Iterator[None]:
        def is_cuda(_: FakeTensor) -> bool:
            return self._takes_its_kernel(sys._getframe(1))

        FakeTensor.is_cuda = property(is_cuda)  # type: ignore[assignment]
        try:
            yield
        finally:
            del FakeTensor.is_cuda

    def _takes_its_kernel(self, frame: FrameType | None) -> bool:
        """Notes who asks, and tells whether the step goes on by the kernel."""
        while frame is not None and frame.f_code.co_name in ("launchable", "<genexpr>", "<listcomp>"):
            frame = frame.f_back
        module = frame.f_globals.get("__name__", "") if frame is not None else ""
        if frame is None or module.partition(".")[0] in ("torch", "transformers", "timm"):
            return False
        asking = frame.f_locals.get("self")
        if isinstance(asking, torch.optim.Optimizer):
            self.optimizers.append(asking)
        elif costs := _costs_beside(module):
            self.costs.update(costs)
            return True
        elif not any(f"\n{AS_MUCH} = True\n" in text for _, text in _kernels_beside(module)):
            where = module.removesuffix(".technique").replace(".", "/")
            self.trace.undeclared(f"on a GPU {where} takes a kernel of its own, which has no declared cost")
        return False


def _kernels_beside(module: str) -> Iterator[tuple[str, str]]:
    """Yields the modules of kernels beside a module, each with its text: importing one would load Triton."""
    for name in (f"{module}_kernel", f"{module.rpartition('.')[0]}.kernel"):
        spec = importlib.util.find_spec(name) if module.count(".") else None
        if spec is not None and spec.origin is not None:
            yield name, Path(spec.origin).read_text("utf-8")


def _costs_beside(module: str) -> Costs:
    """Returns the costs of the operators that the kernels beside a module are seen as; none where Triton is not
    installed, with which they are made."""
    if importlib.util.find_spec("triton") is None:
        return {}
    known: dict[str, Callable[[Operator], Operator]] = {}
    for name, text in _kernels_beside(module):
        if f"\n{COSTS} = " in text:
            known |= getattr(import_module(name), COSTS)
    return known


def _costed(step: TracedStep, costs: Costs) -> TracedStep:
    """Returns the step with what is known of its operators in place of what the dispatcher saw of them."""
    counts: Counter[Operator] = Counter()
    for operator, count in step:
        counts[costs[operator.name](operator) if operator.name in costs else operator] += count
    others = {name: calls for name, calls in step.uncosted.items() if name not in costs}
    reasons = tuple(why for why in step.undeclared if not any(f"::{name} " in why for name in costs))
    return replace(step, counts=counts, uncosted=others, undeclared=reasons)


def _with_own_update(step: TracedStep, stack: str, run: Run) -> TracedStep:
    """Returns the step, with what its optimizer's kernel declares in place of torch's operators of the update."""
    parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    elements = sum(parameter.numel() for parameter in parameters)
    declared = _declared_bytes(stack, str(parameters[0].dtype).removeprefix("torch."))
    if declared is None:
        why = "its optimizer takes a kernel of its own, whose bench declares no bytes for these parameters"
        return replace(step, undeclared=(*step.undeclared, why))
    others = {operator: count for operator, count in step if operator.phase != "optimizer"}
    update = Operator(OWN_UPDATE, "optimizer", "optimizer", read_bytes=round(declared * elements), kernels=1, tensors=1)
    return replace(step, counts=Counter({**others, update: 1}))


def _declared_bytes(stack: str, dtype: str) -> float | None:
    """Returns the bytes that a step moves for each parameter, by the benches of the stack's techniques."""
    for name in Spelling(stack).names:
        entry = catalogue()[name]
        if (entry.folder / "peer.py").is_file():
            benches = import_module(entry.module.rpartition(".")[0] + ".peer").BENCHES
            if dtype in benches:
                return float(benches[dtype].bytes_per_element)
    return None


TRACE_AGAIN = "its trace is of one process, though it trains on several ranks: trace it again"

# a step's time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepTime:
    """Holds a stack's step on a named GPU, or on as many as it trains on, modelled; or the reason why it is not.

    Attributes:
        band: of its time: what 90 % of published steps of its kind kept within that the model had not seen.
        seen: whether such steps were on that GPU, with products of that type; else the band is that of GPUs that the
            model had not seen either.
    """

    stack: str
    step: ModelledStep | None = None
    trace: TracedStep | None = None
    unavailable: str = ""
    band: Band | None = None
    seen: bool = True

    @property
    def ranks(self) -> int:
        """Counts the GPUs that train together; all numbers are of the first."""
        return self.trace.ranks if self.trace else 1

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "stack": self.stack,
            "provenance": PROVENANCE if self.step else "unavailable",
            "reason": self.unavailable,
            "ranks": self.ranks,
            "band": self.band and self.band._asdict(),
            "gpu_seen": self.seen,
            **(asdict(self.step) if self.step else {}),
        }


@dataclass(frozen=True)
class TimesBeside:
    """Holds a stack's modelled step beside its reference's (None for the baseline itself), on ``device`` under
    ``software``.

    Attributes:
        change: what the two differ in, which says how far their ratio is believed; None where they run the same.
        ratio_band: what 90 % of published ratios of that change kept within that the model had not seen; None also
            where that is too wide for a ratio.
    """

    device: Gpu
    software: Software
    reference: StepTime | None
    stack: StepTime
    change: Change | None
    ratio_band: Band | None

    @property
    def ratio(self) -> float | None:
        """Returns stack over reference; None where either has no time, or where nobody could tell how far it is off."""
        if self.reference is None or self.reference.step is None or self.stack.step is None:
            return None
        if self.change is not None and self.ratio_band is None:
            return None
        return self.stack.step.step_s / self.reference.step.step_s

    @property
    def step_s(self) -> float | None:
        """Returns the stack's; None where it has no time."""
        return self.stack.step.step_s if self.stack.step else None

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values. Equal operators take equal time: a band without width."""
        band = Band(0.0, 0, 0) if self.ratio is not None and self.change is None else self.ratio_band
        return {
            "provenance": PROVENANCE,
            "gpu": {"name": self.device.name, "title": self.device.title, **asdict(self.device.reached)},
            "software": self.software.name,
            "reference": self.reference and self.reference.as_dict(),
            "stack": self.stack.as_dict(),
            "ratio": self.ratio,
            "change": self.change,
            "time_band": self.stack.band and self.stack.band._asdict(),
            "ratio_band": band and band._asdict(),
        }


def step_time(stack: str, scale: Scale, device: Gpu, software: Software = DEFAULT, trace: Tracing = traced) -> StepTime:
    """Models the stack's step at that scale on that GPU. What has no declared cost, or cannot be traced, has the
    reason."""
    return _time(stack, trace_of(stack, scale, trace=trace), device, software)


def times_beside(pair: SideBySide, device: Gpu, software: Software = DEFAULT, trace: Tracing = traced) -> TimesBeside:
    """Returns the modelled times of what was counted side by side."""

    def of(side: StepCount) -> KeptTrace:
        if side.counters is None:
            return KeptTrace("", unavailable=side.unavailable)
        return trace_of(side.stack, pair.scale, trace=trace)

    reference = (pair.reference.stack, of(pair.reference)) if pair.reference else None
    return beside(reference, (pair.stack.stack, of(pair.stack)), device, software)


def trace_of(stack: str, scale: Scale, code: str = "", trace: Tracing = traced) -> KeptTrace:
    """Returns the stack's operators at that scale, or why there are none; what failed has no code, and is tried
    again."""
    try:
        return KeptTrace(code, trace(stack, scale))
    except ContenderFailed as failure:
        return KeptTrace("", unavailable=str(failure))
    except (Unavailable, ValueError) as refusal:
        return KeptTrace(code, unavailable=str(refusal))
    except RuntimeError as error:
        return KeptTrace(code, unavailable=why_not(error))


def beside(
    reference: tuple[str, KeptTrace] | None, stack: tuple[str, KeptTrace], device: Gpu, software: Software = DEFAULT
) -> TimesBeside:
    """Returns the modelled times of traces; names first."""
    known = believed()
    device = known.calibrated(device)
    software = replace(software, attention_share=known.attention(software.attention, device))
    ours = _time(*stack, device, software)
    theirs = _time(*reference, device, software) if reference else None
    change = band = None
    before, after = theirs.trace if theirs else None, ours.trace
    if before is not None and after is not None and before != after:  # equal operators take equal time
        change = change_between(before, after)
        band = known.band(change)
    return TimesBeside(device, software, theirs, ours, change, band)


def _time(name: str, trace: KeptTrace, device: Gpu, software: Software) -> StepTime:
    step, known = trace.step, believed()
    if step is None:
        return StepTime(name, unavailable=trace.unavailable)
    if _of_one_process(trace, name):
        return StepTime(name, unavailable=TRACE_AGAIN)
    fabric, dtype = fabric_of(device), widest(step, products_alone=True)
    kind = time_on(step.ranks, fabric.node, dtype)
    if kind == TIME_FAR:
        why = f"{step.ranks} GPUs are more than {NODES} nodes, where published steps stall and none says what one takes"
        return StepTime(name, unavailable=why)
    between = sent(collectives_of(step), known.linked(fabric)) if step.ranks > 1 else None
    try:
        time = modelled(step, device, software, between)
        seen = known.has_rows(device, dtype)
        return StepTime(name, time, step, band=known.band(kind if seen else kind + UNSEEN), seen=seen)
    except ValueError as undeclared:
        return StepTime(name, unavailable=str(undeclared))


def _of_one_process(trace: KeptTrace, stack: str) -> bool:
    """Tells whether a stack that trains on several ranks was traced as if it did not."""
    return trace.step is not None and trace.step.ranks == 1 and is_distributed(stack)


def survey_times(
    stacks: Iterable[str],
    scale: Scale,
    device: Gpu,
    folder: Path,
    task: Task | None = None,
    progress: Progress = silent,
    trace: Tracing = traced,
    ask: Asking = here,
    failed: Callable[[str, str], object] = lambda stack, why: None,
) -> GpuTimes:
    """Models the steps of the stacks on a GPU and keeps each in the folder when it is known, its trace too: what has
    the same code as then is not traced again. ``failed`` gets what failed, with the reason: it is not kept, and is
    traced again."""
    traces, times = dict(step_traces.read(folder)), gpu_times.read(folder)
    wanted = list(map(canonical, stacks))
    at = scale.setting

    def known(stack: str, setting: Setting) -> KeptTrace:
        place = CountPlace(setting.baseline, setting.size, setting.recipe, setting.device, setting.task)
        code = code_of(setting, stack).counts
        step_trace = traces.get((place, stack))
        if step_trace is None or step_trace.code != code or _of_one_process(step_trace, stack):
            step_trace = trace_of(stack, replace(scale, setting=setting), code, trace)
            if step_trace.code:
                traces[place, stack] = step_trace
                step_traces.write(traces, folder)
        return step_trace

    for done, stack in enumerate(wanted):
        progress(done / len(wanted), stack)
        try:
            reference, own = ask(compared_with, stack, at.task)
        except ContenderFailed:  # so will its trace
            reference, own = reference_of(stack)
        setting = at.but(task=task or own)
        other = (reference, known(reference, setting)) if reference != stack else None
        own_trace = known(stack, setting)
        if not own_trace.code:
            failed(stack, own_trace.unavailable)
            continue
        comparison = beside(other, (stack, own_trace), device)
        place = CountPlace(at.baseline, at.size, at.recipe, at.device, setting.task)
        times = times.with_newer(
            ModelledTime(
                place=place,
                gpu=device.name,
                stack=stack,
                reference=reference if other else "",
                step_s=comparison.step_s,
                ratio=comparison.ratio,
                half_width=comparison.ratio_band.half_width if comparison.ratio_band else None,
                unavailable=comparison.stack.unavailable,
            )
        )
        gpu_times.write(times, folder)
    return times
