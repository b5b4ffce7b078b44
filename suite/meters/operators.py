"""Traces the operators that a step dispatches, each with what it computes, reads, writes and launches.

::

    with OperatorTrace() as trace:
        step()
    trace.step()            # a TracedStep: signatures and counts

It takes tensors with values and without (:mod:`suite.measure.at_scale.weightless`), whose operators are those of a GPU.

What is read and written: each storage once, no more of it than its views show. An operator that gathers reads as much
as it writes; one that only writes reads nothing of its target. Under torch.compile, where a caller marks what runs
inside its graphs (:meth:`OperatorTrace.in_compiled_graph`), a run of operators that Inductor fuses is one kernel: it
reads what others made and writes what others read.

Limits. Views, allocations and metadata are one signature a phase, as only the host knows of them. A kernel that is
launched outside the dispatcher is not seen: whoever knows of one adds it (:meth:`OperatorTrace.add`), or says that it
has no declared cost (``undeclared``).
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.meters import collectives
from suite.meters.communication import NAMESPACES, NOT_COLLECTIVES
from suite.meters.flops import FlopCounter
from suite.meters.free_operators import LIBRARIES, free
from suite.meters.tensors import launches
from suite.record.operator_counts import COLLECTIVE, HOST_ONLY, Operator, Phase, TracedStep, step_of

Bytes = dict[int, int]
"""Bytes by storage; a storage's number is never another's."""

KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("product", r"(mm|addmm|bmm|baddbmm|addbmm|_addmm_activation|_int_mm|_scaled_mm|mv|addmv|dot|_grouped_mm)_?"),
        ("attention", r".*attention.*"),
        ("convolution", r".*convolution.*"),
        ("norm", r".*(layer_norm|batch_norm|group_norm|rms_norm).*"),
        ("softmax", r"_?(log_)?softmax.*|_safe_softmax"),
        ("loss", r"nll_loss.*|.*cross_entropy.*|mse_loss.*"),
        ("optimizer", r"_foreach.*|_fused_.*|_amp_foreach.*"),
        (
            "index",
            r"embedding.*|index.*|_unsafe_index.*|gather|scatter.*|_index_put.*|masked_(select|scatter).*|"
            r"take.*",
        ),
        ("sort", r"sort|topk|argsort|randperm|multinomial|unique.*|kthvalue|cumsum|median|nonzero.*|searchsorted"),
        ("random", r"native_dropout.*|bernoulli.*|uniform.*|normal.*|rand.*|exponential.*"),
        (
            "reduction",
            r"sum|mean|var.*|std.*|norm.*|linalg_vector_norm|amax|amin|max|min|argmax|argmin|any|all|"
            r"logsumexp|prod|aminmax|count_nonzero",
        ),
        (
            "copy",
            r"copy_|_to_copy|clone|cat|_?stack|contiguous|flip|roll|repeat.*|tri[lu]|constant_pad.*|zero_|fill_|"
            r".*_backward|new_zeros|zeros.*|ones.*|full.*|arange.*|.*_scatter|pixel.*|im2col|col2im|_?chunk_cat.*|"
            r"all_gather_copy_in|split_with_sizes_copy",
        ),
    )
)
"""The first pattern that an operator's whole name has says its kind; pointwise ones are known by their tag."""

FUSED = frozenset({"pointwise", "copy", "cast", "transposing copy", "reduction", "norm", "softmax", "random", "loss"})
"""What Inductor makes one kernel of, where nothing else is between."""
WRITE_ONLY = frozenset({"zero_", "fill_", "copy_", "uniform_", "normal_", "bernoulli_", "random_"})
PLACED = frozenset({"index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "index_add_", "index_copy_"})
KERNELS = {
    "native_layer_norm_backward": 2,
    "embedding_dense_backward": 4,
    "index_put_": 3,
    "sort": 4,
    "slice_backward": 2,
    "select_backward": 2,
}
"""Kernels that torch launches for one operator, where it is more than one (attention's backward takes three)."""
UNSEEN = frozenset({"detach", "is_same_size", "lift_fresh"})
"""What autograd does without the dispatcher's path: no time of a host's."""


@dataclass(frozen=True)
class _Event:
    """Describes one dispatched operator, with its storages told apart: what fusing needs, and a signature does not
    keep."""

    operator: Operator
    reads: Bytes
    writes: Bytes

    def signature(self) -> Operator:
        if self.operator.kind == COLLECTIVE:
            return self.operator
        read, written = sum(self.reads.values()), sum(self.writes.values())
        return replace(self.operator, read_bytes=read, written_bytes=written)


class OperatorTrace(TorchDispatchMode):
    """Notes what runs inside it. One trace, one step; results are there when it has closed."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()
        self._events: list[_Event] = []
        self._numbers: dict[int, int] = {}
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._made = 0
        self._optimizing = self._compiled = False
        self._uncosted: Counter[str] = Counter()
        self._undeclared: dict[str, None] = {}
        self._formulas: Mapping[Any, Any] = FlopCounter().flop_registry
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        def optimizing(now: bool) -> Any:
            return lambda *_: setattr(self, "_optimizing", now)

        self._handles = [
            register_optimizer_step_pre_hook(optimizing(True)),
            register_optimizer_step_post_hook(optimizing(False)),
        ]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for handle in self._handles:
            handle.remove()

    @property
    def phase(self) -> Phase:
        """Returns the phase of what runs now. What is computed again inside a backward pass is part of it."""
        if self._optimizing:
            return "optimizer"
        return "backward" if torch._C._current_graph_task_id() != -1 else "forward"

    @contextmanager
    def in_compiled_graph(self) -> Iterator[None]:
        """Notes what runs inside as launched by generated code, and fused."""
        self._compiled = True
        try:
            yield
        finally:
            self._compiled = False

    def add(self, operator: Operator) -> None:
        """Adds what the dispatcher does not see: a transfer, a kernel with declared bytes."""
        self._events.append(_Event(operator, {0: operator.read_bytes}, {-1: operator.written_bytes}))

    def undeclared(self, why: str) -> None:
        """Says that something runs of which nobody declared the cost."""
        self._undeclared[why] = None

    def step(self) -> TracedStep:
        """Returns what ran, by signature."""
        beside = collectives.hidden(self._events)
        events = [
            replace(event, operator=replace(event.operator, hidden=place in beside))
            if event.operator.kind == COLLECTIVE
            else event
            for place, event in enumerate(self._events)
        ]
        return step_of((event.signature() for event in _fused(events)), dict(self._uncosted), tuple(self._undeclared))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        out = func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            self.undeclared(f"the kernel {func} has no declared bytes and FLOPs")
        elif isinstance(func, OpOverload):
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        name = func._overloadpacket.__name__
        if func.namespace in NAMESPACES:
            self._note_collective(func, args, kwargs, out)
            return
        # prims appear in compiled graphs alone: casts, mostly, which launch
        if not launches(func) and not (func.namespace == "prims" and not func.is_view and self._compiled):
            if func.namespace == "aten" and name not in UNSEEN and not name.startswith("sym_") and not self._compiled:
                view = Operator("view", HOST_ONLY, self.phase, kernels=0)
                self._events.append(_Event(view, {}, {}))
            return
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        formula = self._formulas.get(func._overloadpacket)
        if formula is None and not free(func._overloadpacket):
            self._uncosted[name] += 1
            if func.namespace not in LIBRARIES:
                self.undeclared(f"the kernel {func.namespace}::{name} has no declared bytes and FLOPs")
        kind = _kind(func, name)
        operator = Operator(
            name,
            kind,
            self.phase,
            _dtype(inputs, outputs),
            _differing(inputs),
            _shapes(args),
            flops=int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0,
            kernels=KERNELS.get(name, 3 if kind == "attention" and "backward" in name else 1),
            tensors=max(1, len(inputs)),
            compiled=self._compiled,
        )
        operator = _with_sizes(operator, func, inputs, outputs, args, kwargs)
        self._events.append(_Event(operator, *self._moved(func, name, kind, (args, kwargs), inputs, outputs)))

    def _note_collective(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        if func._overloadpacket.__name__ in NOT_COLLECTIVES:
            return
        operator = collectives.collective(func, self.phase, args, kwargs, out)
        if operator is None:
            self.undeclared(collectives.IN_TURN)
            return
        made = self._sizes(_tensors(out)) or self._sizes(_tensors(args[:1]))  # in place: the first argument
        self._events.append(_Event(operator, self._sizes(_tensors((args, kwargs))), made))

    # storages ---------------------------------------------------------------------------------------------------------

    def _number(self, storage: torch.UntypedStorage) -> int:
        """Returns a storage's own number; an address may be used again by another once it is freed."""
        key = storage._cdata
        known = self._living.get(key)
        if known is None or known() is not storage:
            self._made += 1
            self._numbers[key] = self._made
            self._living[key] = weakref.ref(storage)
        return self._numbers[key]

    def _sizes(self, tensors: Iterable[Tensor]) -> Bytes:
        seen: Bytes = {}
        for tensor in tensors:
            if tensor.layout is torch.strided:
                number = self._number(tensor.untyped_storage())
                seen[number] = max(seen.get(number, 0), _bytes(tensor))
        return seen

    def _moved(
        self, func: OpOverload, name: str, kind: str, call: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[Bytes, Bytes]:
        """Returns the bytes that an operator reads and writes, by storage."""
        args, kwargs = call
        reads, results = self._sizes(inputs), self._sizes(outputs)
        schema = func._schema.arguments
        arguments = [
            *zip(schema, args),
            *((argument, kwargs[argument.name]) for argument in schema if argument.name in kwargs),
        ]
        targets = [leaf for argument, value in arguments if argument.is_write for leaf in _tensors(value)]
        writes = self._sizes(targets) | {number: size for number, size in results.items() if number not in reads}
        only_written = [leaf for argument, value in arguments if argument.is_out for leaf in _tensors(value)]
        for target in only_written or (targets[:1] if name in WRITE_ONLY else []):
            reads.pop(self._number(target.untyped_storage()), None)
        written = sum(writes.values())
        if name == "all_gather_copy_in":  # writes this rank's part of what will be gathered
            reads = self._sizes(_tensors(args[0]))
            writes = dict.fromkeys(results, sum(reads.values()))
        elif kind == "index" and "backward" not in name:
            if name in PLACED:
                written = 2 * sum(map(_bytes, inputs[1:]))
                writes = {number: min(size, written) for number, size in writes.items()}
            reads = {number: min(size, max(written, 1)) for number, size in reads.items()}
        elif name == "nll_loss_forward":  # a sector of 32 bytes, of the target's place and of the target
            reads = {number: min(size, 64 * max(1, inputs[0].shape[0])) for number, size in reads.items()}
        elif name in ("nll_loss_backward", "embedding_dense_backward"):
            reads = {number: size for number, size in reads.items() if name.startswith("embedding")}
        elif name == "native_layer_norm_backward":  # once for the input's gradient, once for the weight's
            reads = {number: 2 * size for number, size in reads.items()}
        return reads, writes


def _tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Counts the bytes that a view shows: what is expanded is there once."""
    if tensor.layout is not torch.strided:
        return int(tensor._nnz()) * tensor.element_size()
    sizes = zip(tensor.shape, tensor.stride())
    return prod(size for size, stride in sizes if stride or size == 0) * tensor.element_size()


def _kind(func: OpOverload, name: str) -> str:
    if func.namespace == "prims":
        return "pointwise"
    if torch.Tag.pointwise in func.tags and not name.startswith(("_foreach", "native_dropout", "bernoulli")):
        return "pointwise"
    known = next((kind for kind, pattern in KINDS if pattern.fullmatch(name)), "")
    return known or ("pointwise" if name.endswith("_") else "other")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    floating = [tensor for tensor in inputs if tensor.is_floating_point()]
    tensors = floating or [*inputs, *outputs]
    return _short(tensors[0].dtype) if tensors else "float32"


def _differing(inputs: Sequence[Tensor]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_short(tensor.dtype) for tensor in inputs))
    return names if len(names) > 1 else ()


def _shapes(args: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, argument.shape)) for argument in args if isinstance(argument, Tensor))


def _with_sizes(
    operator: Operator, func: OpOverload, inputs: Sequence[Tensor], outputs: Sequence[Tensor], args: Any, kwargs: Any
) -> Operator:
    """Returns the operator, with what its kind's cost wants to know besides bytes and FLOPs."""
    if operator.kind == "product" and len(inputs) >= 2:
        a, b = inputs[-2:] if len(inputs) < 4 else inputs[:2]
        batch = a.shape[0] if a.dim() == 3 else 1
        n = b.shape[-1] if b.dim() > 1 else 1
        aligned = all(size % 8 == 0 or size == 1 for size in (_leading(a), _leading(b), n))
        rows = a.shape[-2] if a.dim() > 1 else 1
        return replace(operator, product=(batch, rows, n, a.shape[-1]), aligned=aligned)
    if operator.kind == "attention":
        names = [argument.name for argument in func._schema.arguments]
        at = names.index("is_causal") if "is_causal" in names else None
        causal = at is not None and bool(args[at] if len(args) > at else kwargs.get("is_causal"))
        return replace(operator, causal=causal)
    if operator.name in ("_to_copy", "copy_", "clone") and inputs and outputs:
        source = inputs[-1]
        if source.stride() != outputs[0].stride() and source.numel() > 1 and 0 not in source.stride():
            return replace(operator, kind="transposing copy")
        return replace(operator, kind="cast") if operator.name == "_to_copy" else operator
    return operator


def _leading(tensor: Tensor) -> int:
    return next((stride for stride in tensor.stride()[-2:] if stride != 1), 8)


# fusion -------------------------------------------------------------------------------------------------------------


def _fused(events: Sequence[_Event]) -> Iterator[_Event]:
    """Yields the events, with runs of what Inductor fuses as one kernel each."""
    last = {number: index for index, event in enumerate(events) for number in event.reads}
    group: list[_Event] = []
    for index, event in enumerate(events):
        if event.operator.compiled and event.operator.kind in FUSED:
            group.append(event)
            continue
        if group:
            yield _one_kernel(group, last, index)
            group = []
        yield event
    if group:
        yield _one_kernel(group, last, len(events))


def _one_kernel(group: Sequence[_Event], last: Mapping[int, int], end: int) -> _Event:
    """Returns what adjacent operators are as one: ``last`` says which event is the last to read a storage, ``end``
    which comes next. What they reduce along different sizes takes a kernel each, three at most."""
    reads: Bytes = {}
    written: Bytes = {}
    for event in group:
        for number, size in event.reads.items():
            if number not in written:
                reads[number] = max(reads.get(number, 0), size)
        written |= event.writes
    writes = {number: size for number, size in written.items() if last.get(number, end) >= end}
    reducing = [event for event in group if event.operator.kind in ("reduction", "norm", "softmax")]
    passes = len({max(event.writes.values(), default=0) for event in reducing})
    first = group[0].operator
    names = "+".join(dict.fromkeys(event.operator.name for event in group))
    operator = Operator(names, "fused", first.phase, first.dtype, kernels=max(1, min(passes, 3)), compiled=True)
    return _Event(operator, reads, writes)
