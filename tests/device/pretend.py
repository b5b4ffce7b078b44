"""A GPU that is not there: tensors with values that say they are on ``cuda:0``, and torch.cuda's parts that runs use.

Inside of :func:`pretended_gpu` a technique takes the paths that it takes on a GPU, and what a GPU refuses is refused:

* an operator on tensors of both places (but for single numbers and indices), a generator of the other place;
* ``numpy()`` of a tensor on the GPU;
* dropout and its like draw from the device's own generator, which ``torch.get_rng_state`` does not know.

Values are computed on the CPU by the same operators, so that a run gives the CPU's numbers to the bit where no kernel
of ours is launched; those run under Triton's interpreter. To autograd the tensors are the CPU's: what a derivative
makes in C++ for "the gradient's device" is put on the GPU here. Not pretended: wrapper subclasses of a technique's
own, compiled graphs, more GPUs than one, time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
BY_INDEX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
DEFAULT_GENERATOR = torch.Generator()
RealAutocast = torch.autocast


class OnGpu(Tensor):
    """``values``, a CPU tensor, as one on the GPU."""

    @staticmethod
    def __new__(cls, values: Tensor) -> OnGpu:
        tensor: Any = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=CPU,
        )
        tensor.values_ = values
        return tensor

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, new: OnGpu) -> None:
        with torch.no_grad():
            Tensor.data.__set__(self, new)
        self.values_ = new.values_

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.values_.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values_.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        pass

    def tolist(self) -> Any:
        return self.values_.tolist()

    def __reduce_ex__(self, protocol: int) -> Any:
        return on_gpu, (self.values_,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Any = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def on_gpu(values: Tensor) -> OnGpu:
    return OnGpu(values)


def _values(leaf: Any) -> Any:
    return leaf.values_ if isinstance(leaf, OnGpu) else leaf


class _Asking(threading.local):
    """Who asks for a device: Python, whose word counts, or a derivative in C++, which is on the wrong one."""

    calls = 0  # of torch's functions, by Python, that are under way in this thread
    moving = False

    def in_a_derivative(self) -> bool:
        return torch._C._current_graph_task_id() != -1 and self.calls == 0 and not self.moving


_where = _Asking()


def dispatched(func: Any, args: Any, kwargs: Any) -> Any:
    """The operator on values; a result is on the GPU where its operands are, or where it was asked to be."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    held = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    asked = kwargs.get("device")
    there = torch.device(asked).type == "cuda" if asked is not None else bool(held)
    if ((held and asked is not None) or not tensors) and _where.in_a_derivative():
        there = True
    if func is aten.copy_.default or func._schema.name.endswith("_foreach_copy_"):
        there = isinstance(tensors[0], OnGpu)
    elif held and func is not aten._to_copy.default and func not in BY_INDEX:
        apart = [each for each in tensors if not isinstance(each, OnGpu) and each.dim()]
        if apart:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu")
    if func is aten._fused_sdp_choice.default:
        return 0
    own = torch.Tag.nondeterministic_seeded in func.tags and there
    own = own and not any(isinstance(leaf, torch.Generator) for leaf in leaves)
    plain_args, plain_kwargs = tree_map(_values, (args, kwargs))
    plain_kwargs |= {"device": CPU} if asked is not None else {}
    plain_kwargs |= {"pin_memory": False} if plain_kwargs.get("pin_memory") else {}
    with _default_generator(DEFAULT_GENERATOR) if own else nullcontext():
        out = func(*plain_args, **plain_kwargs)
    if func._schema.is_mutable:
        known = {id(_values(each)): each for each in tensors}
        return tree_map(lambda leaf: known.get(id(leaf), _placed(leaf, there)), out)
    return tree_map(lambda leaf: _placed(leaf, there), out)


def _placed(leaf: Any, there: bool) -> Any:
    return OnGpu(leaf) if there and isinstance(leaf, Tensor) else leaf


@contextmanager
def _default_generator(generator: torch.Generator) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: torch.device) -> Tensor:
        ctx.back = tensor.device
        _where.moving = True
        try:
            return aten._to_copy(tensor, device=device)
        finally:
            _where.moving = False

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return moved(gradient, ctx.back), None


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if (device.type == "cuda") == isinstance(tensor, OnGpu) else _Move.apply(tensor, device)


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Of torch's functions those that C++ would answer by itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        kwargs.pop("pin_memory", None)
        if isinstance(generator := kwargs.get("generator"), Generator):
            place = kwargs.get("device") or (first.device if isinstance(first, Tensor) else CPU)
            if torch.device(place).type != generator.device.type:
                raise RuntimeError(f"{name}: expected a generator on {place}, not on {generator.device}")
        if isinstance(first, Tensor):
            if name in ("cuda", "cpu"):
                return moved(first, torch.device(name))
            if name == "to":
                return self._to(first, args[1:], kwargs)
            if name == "pin_memory":
                if isinstance(first, OnGpu):
                    raise RuntimeError("cannot pin a tensor on cuda:0: only dense CPU tensors can be pinned")
                return first
        if isinstance(first, OnGpu):
            if name == "numpy":
                raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")
            if name in ("tolist", "data_ptr", "untyped_storage"):
                return getattr(first.values_, name)()
            if name == "new_tensor":
                return moved(torch.tensor(args[1], dtype=kwargs.get("dtype", first.dtype)), GPU)
        if name in ("tensor", "as_tensor") and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs.pop("device")
            return moved(func(*args, **kwargs), GPU)
        if name in ("backward", "grad") or isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        _where.calls += 1
        try:
            return func(*args, **kwargs)
        finally:
            _where.calls -= 1

    @staticmethod
    def _to(tensor: Tensor, rest: Any, kwargs: dict[str, Any]) -> Tensor:
        device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        kwargs.pop("non_blocking", None)
        for each in rest:
            if isinstance(each, Tensor):
                device, dtype = each.device, each.dtype
            elif isinstance(each, str | torch.device):
                device = each
            elif isinstance(each, torch.dtype):
                dtype = each
        if dtype is not None or kwargs:
            tensor = tensor.to(dtype=dtype or tensor.dtype, **kwargs)
        return tensor if device is None else moved(tensor, torch.device(device))


class Generator(torch.Generator):
    """One on either device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made: Any = super().__new__(cls, "cpu")
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    device = property(lambda self: GPU if self.place.type == "cuda" else CPU)

    def manual_seed(self, seed: int) -> Generator:
        super().manual_seed(seed)
        return self


class Autocast(RealAutocast):
    """That of the GPU is the CPU's, too, which the operators below are."""

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        super().__init__(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self.below = (
            RealAutocast("cpu", dtype=self.fast_dtype, enabled=enabled, cache_enabled=cache_enabled)
            if device_type == "cuda"
            else nullcontext()
        )

    def __enter__(self) -> Any:
        self.below.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        self.below.__exit__(*exception)
        return super().__exit__(*exception)


class Event:
    def __init__(self, **_: Any) -> None:
        self.at_s, self.known = 0.0, False

    def record(self, stream: Any = None) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        self.known = True

    def elapsed_time(self, end: Event) -> float:
        if not end.known:
            raise RuntimeError("the end has not been waited for: a GPU would raise that it is not ready")
        return (end.at_s - self.at_s) * 1000


class Stream:
    def __init__(self, device: Any = None, **_: Any) -> None:
        self.device = torch.device(device or GPU)

    def wait_event(self, event: Event) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


@contextmanager
def pretended_gpu(launches: list[str] | None = None) -> Iterator[None]:
    """While active, ``cuda`` is there. The names of the kernels that are launched are added to ``launches``."""
    torch.serialization.add_safe_globals([on_gpu])
    import triton.runtime.interpreter as interpreter

    from suite.kernels import multi_tensor

    streams, check, submit = [Stream()], multi_tensor._check, ThreadPoolExecutor.submit
    engine, run = torch.autograd.graph._engine_run_backward, interpreter.InterpretedFunction.run

    @contextmanager
    def on_stream(stream: Stream) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    def backward(*args: Any, **kwargs: Any) -> Any:
        calls, _where.calls = _where.calls, 0
        try:
            with _Functions():
                return engine(*args, **kwargs)
        finally:
            _where.calls = calls

    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if launches is not None:
            launches.append(kernel.__name__)
        args, kwargs = tree_map(_values, (args, kwargs))
        with torch.utils._python_dispatch._disable_current_modes():
            return run(kernel, *args, **kwargs)

    def submitted(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def inside() -> Any:
            with _Functions(), _Operators():
                return function(*args, **kwargs)

        return submit(pool, inside)

    def checked(lists: Any, addresses: Any, lasting: int) -> None:
        check([[_values(each) for each in tensors] for tensors in lists], addresses, lasting)

    stand_ins: list[tuple[Any, str, Any]] = [
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "init", lambda: None),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "is_initialized", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_of", lambda tensor: nullcontext()),
        (torch.cuda, "synchronize", lambda device=None: None),
        (torch.cuda, "empty_cache", lambda: None),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
        (torch.cuda, "get_rng_state", lambda device=None: DEFAULT_GENERATOR.get_state()),
        (torch.cuda, "set_rng_state", lambda state, device=None: DEFAULT_GENERATOR.set_state(state)),
        (torch.cuda, "manual_seed_all", DEFAULT_GENERATOR.manual_seed),
        (torch.cuda, "_is_in_bad_fork", lambda: False),
        (torch.cuda, "Event", Event),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "stream", on_stream),
        (torch.cuda, "current_stream", lambda device=None: streams[-1]),
        (torch, "Generator", Generator),
        *((module, "autocast", Autocast) for module in (torch, torch.amp, torch.amp.autocast_mode)),
        *((module, "_engine_run_backward", backward) for module in (torch.autograd, torch.autograd.graph)),
        (torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda optimizer: None),
        (interpreter.InterpretedFunction, "run", launched),
        (ThreadPoolExecutor, "submit", submitted),
        (multi_tensor, "_check", checked),
    ]
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for owner, name, stand_in in stand_ins:
            stack.enter_context(patch.object(owner, name, stand_in))
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        stack.enter_context(_Functions())
        stack.enter_context(_Operators())
        yield
