"""Makes tensors without values: torch's fake tensors, on which a training step goes as it does on real ones.

A fake tensor has a shape, a type and a storage of the right size. Torch's own mode serves tracing; what differs there
from a real step (masks, foreach operators, copies, statistics' types) is set right here, one reason a line. All fake
tensors say that they are on the CPU; the operators are those of the device that is asked for.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._foreach_utils
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode, fake_tensor
from torch.utils._mode_utils import no_dispatch

from suite.meters.gpu_operators import HALF, gpu_operators

aten = torch.ops.aten
SEQUENCES = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default})
FILLED = frozenset({aten.full.default, aten.ones.default, aten.zeros.default})
LARGEST_KEPT = 1 << 16
OPTIMIZERS: Any = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim hides the name
# Without a meta kernel, torch's mode runs an operator on zeros as large as the whole model.
WITHOUT_META = ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")
ATEN = torch.library.Library("aten", "IMPL")
for _name in WITHOUT_META:
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):
        ATEN.impl(_name, lambda *_, **__: None, "Meta")  # it writes to what it is given, and returns nothing


class Weightless(FakeTensorMode):
    """Makes fake tensors on which a step takes the path, and saves the bytes, that it does on real ones on ``device``.

    Small tensors that a program makes of sizes alone (positions, a step counter, drop rates by depth) keep their
    values, as it asks for them: "are these positions of one sequence?". Torch's own mode keeps single numbers only.
    """

    def __init__(self, device: str) -> None:
        # a real tensor that a library made at import is as good as a fake one
        super().__init__(allow_non_fake_inputs=True)
        self._operators = device
        self._allow_unsafe_data_ptr_access = False  # whoever wants an address gets an error, not a crash

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output: Any = super().dispatch(func, types, args, kwargs or {})
        if output is NotImplemented:  # tensors of a kind of their own go first, and come back as fake ones
            return output
        if _of_sizes(func, output):
            with no_dispatch():
                real = func(*args, **(kwargs or {}))
            return self.fake_tensor_converter.from_real_tensor(self, real, make_constant=True)
        if func is aten.native_layer_norm.default:
            # Torch's meta kernel gives the statistics the input's type, and they are saved.
            y, *statistics = output
            own_dtype = self._statistics_dtype(args[0].dtype, args[2])
            with self:
                return (
                    y,
                    *(
                        statistic if statistic.dtype == own_dtype else torch.empty_like(statistic, dtype=own_dtype)
                        for statistic in statistics
                    ),
                )
        return output

    def _statistics_dtype(self, of_input: torch.dtype, weight: Tensor | None) -> torch.dtype:
        """Returns the type of a normalisation's statistics: a CPU keeps the weight's type, a GPU the one that it adds
        up in."""
        if self._operators == "cuda":
            return torch.float32 if of_input in HALF else of_input
        return weight.dtype if weight is not None else of_input

    def invalidate_written_to_constants(self, func: Any, flat_arg_fake_tensors: Any, args: Any, kwargs: Any) -> None:
        """Does what torch's own does, also for the lists of tensors that foreach operators write to."""
        super().invalidate_written_to_constants(func, flat_arg_fake_tensors, args, kwargs)
        for argument, value in zip(func._schema.arguments, args):
            if argument.is_write and isinstance(value, list | tuple):
                for tensor in value:
                    if self.is_our_fake(tensor) and tensor.constant is not None:
                        self.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)

    def may_turn_const(self, t: Tensor) -> bool:
        return (
            t.numel() <= LARGEST_KEPT
            and t.layout is torch.strided
            and t.device.type == "cpu"
            and not self.is_our_fake(t)
        )


def _of_sizes(func: Any, output: Any) -> bool:
    """Tells whether an operator makes a small tensor whose values follow from sizes: not a weight or a buffer of
    zeros."""
    if func not in SEQUENCES and func not in FILLED:
        return False
    of_sizes = func in SEQUENCES or output.numel() == 1 or not output.is_floating_point()
    return of_sizes and output.numel() <= LARGEST_KEPT and output.device.type == "cpu"


@contextmanager
def weightless(device: str = "cpu") -> Iterator[None]:
    """While active, tensors have no values, and a step runs the operators of ``device``, "cpu" or "cuda".

    What libraries do otherwise with fake tensors they do as with real ones.
    """
    foreach: Any = torch.utils._foreach_utils
    with ExitStack() as stack:
        # A stack that does not go on a model is an answer; torch writes a trace of it besides.
        stack.enter_context(replaced(fake_tensor.log, "disabled", True))
        # nn.Module.to swaps fake parameters, which fails as the mode itself refers to them; real ones get new data.
        stack.enter_context(replaced(torch.utils, "swap_tensors", _with_data_of))
        # Draws again what fell outside, so it looks; torch itself passes over meta tensors here.
        stack.enter_context(replaced(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        # torch's own looks at addresses and copies memory.
        stack.enter_context(replaced(Tensor, "__deepcopy__", _copied))
        # torch takes the loop in place of the foreach operators for any subclass of Tensor.
        for module in (foreach, OPTIMIZERS):
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(replaced(module, "_foreach_supported_types", types))
        if device == "cuda":
            # There torch's optimizers take the foreach operators unless told otherwise.
            supported = [*foreach._get_foreach_kernels_supported_devices(), "cpu"]
            stack.enter_context(replaced(OPTIMIZERS, "_get_foreach_kernels_supported_devices", lambda: supported))
            stack.enter_context(gpu_operators())
        # transformers takes fake tensors for a trace, and then makes masks that a real step goes without.
        for name in ("transformers.masking_utils", "transformers.modeling_attn_mask_utils"):
            if name in sys.modules:  # a model of that library has imported them
                stack.enter_context(
                    replaced(sys.modules[name], "is_tracing", lambda tensor=None: torch.compiler.is_compiling())
                )
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(Weightless(device))
        yield


def _with_data_of(parameter: Tensor, converted: Tensor) -> None:
    parameter.data = converted.detach()


@torch.no_grad()
def _copied(tensor: Any, memo: dict[Any, Any]) -> Tensor:
    """Returns what deepcopy makes of a tensor: a parameter is cloned, another gets its whole storage copied, once for
    all."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if isinstance(tensor, nn.Parameter):
        copied: Any = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
    elif tensor.constant is not None:
        copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    else:
        storage = tensor.untyped_storage()
        storages = memo.setdefault("torch", {})
        if storage._cdata not in storages:
            storages[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8)
        whole = storages[storage._cdata].view(tensor.dtype)
        copied = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copied.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = copied
    copied.grad = copy.deepcopy(tensor.grad, memo)
    for name, value in vars(tensor).items():
        if not hasattr(copied, name):
            setattr(copied, name, copy.deepcopy(value, memo))
    return copied


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
