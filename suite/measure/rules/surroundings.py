"""Checks what a run must leave as it was: the harness's and the libraries' definitions, and the settings of the
process.

A copy of what stands in the modules is taken when the fork server has loaded them, before any technique's code. What is
added later is nobody's replacement; what is hooked by a library (torch wraps the step of every optimizer's class) keeps
its origin by ``__wrapped__``. A function may stay the same object and get other code, defaults or contents of its
closure, a constant another value in its place: these are looked at, too. What was in a container stays in it, and
caches may grow.
"""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
import torch.nn.modules.module as every_module
import torch.utils.flop_counter

from suite.entries.module_files import package_of
from suite.measure.rules.broken import RuleBroken, few

DEFINITIONS, SETTINGS, OBJECTS = "definitions stay", "settings stay", "no method is replaced"
HARNESS = package_of(__name__)
LIBRARIES = (
    "builtins",
    "math",
    "time",
    "torch.nn.functional",
    "torch.autograd",
    "torch.autograd.graph",
    "torch.utils.flop_counter",
    "torch.cuda",
    "torch._tensor",
)
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
CALLABLE = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, type)
IN_CLASSES = (*CALLABLE, property, staticmethod, classmethod)
PLAIN_TYPES = (int, float, str, bytes, bool, type(None), frozenset)
CONTAINERS = (dict, list, set)
Definitions = Mapping[str, object]


def definitions(packages: frozenset[str]) -> Definitions:
    """Returns what the loaded modules of the harness, of ``packages`` and of the watched libraries define, by dotted
    name."""
    held: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if name in LIBRARIES or package_of(name) in packages | {HARNESS}:
            held |= _of_module(name, module)
    return held | _formulas()


def _essence(value: object, deep: int = 2) -> tuple[object, ...]:
    """Returns what of a function decides what it does, compared object by object; nothing of what is none."""
    own = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    if not isinstance(own, FunctionType) or not deep:
        return ()
    named = [part for pair in sorted((own.__kwdefaults__ or {}).items()) for part in pair]
    cells: list[object] = []
    for cell in own.__closure__ or ():
        with suppress(ValueError):  # it is empty
            cells += [cell.cell_contents, *_essence(cell.cell_contents, deep - 1)]
    return (own.__code__, own.__defaults__, *named, *cells)


def _constant(value: object) -> object:
    """Returns a plain value, or a container with plain values, as it is now; of anything else nothing."""
    if isinstance(value, CONTAINERS):
        return _plain_entries(value)
    return value if _is_plain(value) else None


def _plain_entries(value: Any) -> tuple[object, ...]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else value
    return tuple(each for each in entries if _is_plain(each))


def _is_plain(value: object) -> bool:
    return type(value) in PLAIN_TYPES or (type(value) is tuple and all(map(_is_plain, value)))


def _stays(before: object, now: object) -> bool:
    """Tells whether a constant is as it was; a container may have more than it had."""
    if isinstance(now, CONTAINERS):
        return isinstance(before, tuple) and set(before) <= set(_plain_entries(now))
    return type(before) is type(now) and (before == now or before != before)


def _constants(name: str, module: ModuleType) -> dict[str, object]:
    """Returns the plain constants of a module of the harness, and of its classes, by dotted name."""
    held = {f"{name}:{key}": value for key, value in vars(module).items()}
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
    held |= {f"{name}:{each.__name__}.{key}": value for each in classes for key, value in vars(each).items()}
    return {key: value for key, value in held.items() if not key.rpartition(":")[2].rpartition(".")[2].startswith("__")}


class Snapshot:
    """Holds what the loaded modules of the harness, of ``packages`` and of the watched libraries define, and what their
    functions are made of; of the first two the constants, too."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages | {HARNESS}
        self._definitions = definitions(packages)
        self._essences = {name: _essence(value) for name, value in self._definitions.items()}
        self._constants = {key: _constant(value) for key, value in self._all_constants().items() if _is_constant(value)}

    def _all_constants(self) -> dict[str, object]:
        known: dict[str, object] = {}
        for name, module in list(sys.modules.items()):
            if package_of(name) in self._packages:
                known |= _constants(name, module)
        return known

    def check(self) -> None:
        """Raises RuleBroken where one of them was replaced, changed or taken away, and where a class has more than it
        had."""
        check_definitions(self._definitions)
        changed = [
            name for name, own in self._essences.items() if own and not _same(own, _essence(self._definitions[name]))
        ]
        now = self._all_constants()
        changed += [name for name, own in self._constants.items() if name not in now or not _stays(own, now[name])]
        if changed:
            raise RuleBroken(DEFINITIONS, f"{few(name.replace(':', '.') for name in changed)} is not what it was")


def _is_constant(value: object) -> bool:
    return _is_plain(value) or isinstance(value, CONTAINERS)


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))


def check_definitions(before: Definitions) -> None:
    """Raises RuleBroken where one of them was replaced or taken away, and where a class has more than it had."""
    now: dict[str, object] = {}
    known_modules = {name.partition(":")[0] for name in before if ":" in name}
    for module in known_modules:
        now |= _of_module(module, sys.modules[module]) if module in sys.modules else {}
    now |= _formulas()
    changed = [name for name, own in before.items() if (new := now.get(name)) is not own and _origin(new) is not own]
    classes = {name for name, own in before.items() if isinstance(own, type)}
    changed += [
        name
        for name in now.keys() - before.keys()
        if name.partition(":")[0] not in LIBRARIES and name.rpartition(".")[0] in classes
    ]
    if changed:
        raise RuleBroken(DEFINITIONS, f"{few(name.replace(':', '.') for name in changed)} is not what it was")


def _formulas() -> dict[str, object]:
    registry = torch.utils.flop_counter.flop_registry
    return {f"FLOPs of {operator}": formula for operator, formula in registry.items()}


def _of_module(name: str, module: ModuleType) -> dict[str, object]:
    held: dict[str, object] = {}
    for attribute, value in list(vars(module).items()):
        if isinstance(value, CALLABLE):
            held[f"{name}:{attribute}"] = value
        if isinstance(value, type) and value.__module__ == name:
            for inner, member in list(vars(value).items()):
                if isinstance(member, IN_CLASSES):
                    held[f"{name}:{attribute}.{inner}"] = member
    return held


def _origin(value: object) -> object:
    """Returns what a wrapper was put around: torch wraps the step of each optimizer's class."""
    with suppress(ValueError, AttributeError):
        return inspect.unwrap(value)  # type: ignore[arg-type]
    return value


def settings(device: torch.device | str = "cpu") -> dict[str, object]:
    """Returns what of the process decides how fast, and how exactly, operators compute, by name."""
    matmul, cudnn, sdp = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda
    known: dict[str, object] = {
        "the default dtype": torch.get_default_dtype(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
        "TF32 products": matmul.allow_tf32,
        "sums of fp16 products": matmul.allow_fp16_reduced_precision_reduction,
        "sums of bf16 products": matmul.allow_bf16_reduced_precision_reduction,
        "cudnn": (cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        "oneDNN": torch.backends.mkldnn.enabled,
        "kernels of attention": (sdp.flash_sdp_enabled(), sdp.mem_efficient_sdp_enabled(), sdp.math_sdp_enabled()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "denormal numbers": bool(torch.tensor([1e-39]).mul(1.0).item()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "gradients": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "what is called at each call": (sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace()),
        "the tools that monitor": _monitoring_tools(),
        "what is called as garbage is collected": list(map(id, gc.callbacks)),
        "hooks of every module": [len(getattr(every_module, name)) for name in GLOBAL_HOOKS],
        "modes of torch": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "signals": [signal.getsignal(each) for each in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)],
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
    }
    if hasattr(os, "sched_getaffinity"):
        known["the cores"] = frozenset(os.sched_getaffinity(0))
    if torch.device(device).type == "cuda":
        known["the stream"] = torch.cuda.current_stream(device)
    return known


def _monitoring_tools() -> list[str | None]:
    """Returns the names of the interpreter's monitoring tools, by number; none before Python 3.12."""
    monitoring = getattr(sys, "monitoring", None)
    return [monitoring.get_tool(number) for number in range(6)] if monitoring else []


def check_settings(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises RuleBroken where one is another now."""
    changed = [f"{name} ({before[name]} before, {now[name]} now)" for name in before if before[name] != now[name]]
    if changed:
        raise RuleBroken(SETTINGS, f"the run changed {few(changed)}; change them for as long as a step takes")


def check_methods(things: Iterable[tuple[object, Mapping[str, Any]]]) -> None:
    """Raises RuleBroken where an object has an attribute in place of a method of its class, but for the known ones."""
    replaced = [
        f"{type(thing).__name__}.{name}"
        for thing, known in things
        for name, value in vars(thing).items()
        if callable(getattr(type(thing), name, None)) and (known.get(name) is not value)
    ]
    if replaced:
        raise RuleBroken(OBJECTS, f"the run put its own in place of {few(replaced)}")


perf_counter, process_time = time.perf_counter, time.process_time
"""The clocks as they were before a technique's code was loaded."""
