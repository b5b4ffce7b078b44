"""Checks what a run must leave as it was: the harness's and the libraries' definitions, and the settings of the
process.

A copy of what stands in the modules is taken when the fork server has loaded them, before any technique's code. What is
added later is nobody's replacement; what is hooked by a library (torch wraps the step of every optimizer's class) keeps
its origin by ``__wrapped__``.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
import torch.utils.flop_counter

from suite.measure.rules.broken import RuleBroken, few

DEFINITIONS, SETTINGS, OBJECTS = "definitions stay", "settings stay", "no method is replaced"
HARNESS = __name__.partition(".")[0]
LIBRARIES = (
    "time",
    "torch.nn.functional",
    "torch.autograd",
    "torch.autograd.graph",
    "torch.utils.flop_counter",
    "torch.cuda",
    "torch._tensor",
)
CALLABLE = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, type)
IN_CLASSES = (*CALLABLE, property, staticmethod, classmethod)
Definitions = Mapping[str, object]


def definitions(packages: frozenset[str]) -> Definitions:
    """Returns what the loaded modules of the harness, of ``packages`` and of the watched libraries define, by dotted
    name."""
    held: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if name in LIBRARIES or name.partition(".")[0] in packages | {HARNESS}:
            held |= _of_module(name, module)
    return held | _formulas()


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
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
    }
    if hasattr(os, "sched_getaffinity"):
        known["the cores"] = frozenset(os.sched_getaffinity(0))
    if torch.device(device).type == "cuda":
        known["the stream"] = torch.cuda.current_stream(device)
    return known


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
