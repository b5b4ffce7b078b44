"""Describes the arithmetic of a run: which instructions its operators use, and so where its bits repeat.

Libraries choose their code by what the CPU has, and sum in another order on each. What is off the clock therefore runs
under one setting, whatever the CPU has more: two CPUs, one with AVX-512 and one without, then give the same bits. What
is timed keeps the machine's own.

A setting is spelled as records have it: ``avx2`` is the portable one, ``avx2,MKL_CBWR=COMPATIBLE`` has one variable
more, and ``native`` is what the libraries choose by themselves.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from suite.record.files import cache_folder

NATIVE = "native"
PORTABLE = "avx2"
PORTABLE_ENVIRONMENT: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""torch reads the first variable, oneDNN the second: each once, when the first operator asks."""

FURTHER = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "DNNL_MAX_CPU_ISA")
VARIABLES = (*PORTABLE_ENVIRONMENT, *FURTHER)
"""What changes the bits of a run on one CPU."""

COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it compiled."""

FLAGS: Mapping[str, str] = {"avx": "avx", "avx2": "avx2", "avx512": "avx512f", "avx512_core": "avx512f"}
"""The flag of ``/proc/cpuinfo`` without which a value of :data:`VARIABLES` cannot be had."""


def environment(numerics: str) -> dict[str, str]:
    """Returns the variables of a setting. Raises ValueError for a text that spells none."""
    name, *settings = numerics.split(",")
    if name not in (NATIVE, PORTABLE) or not all(re.fullmatch(r"[A-Z_]+=[\w.]+", setting) for setting in settings):
        raise ValueError(f"{numerics!r} is no setting of the arithmetic; one is {PORTABLE} or {NATIVE}")
    base = PORTABLE_ENVIRONMENT if name == PORTABLE else {}
    return {**base, **dict(setting.split("=", 1) for setting in settings)}


def spelled(variables: Mapping[str, str]) -> str:
    """Returns the setting of an environment: what it says of VARIABLES. The inverse of :func:`environment`."""
    known = {name: variables[name] for name in VARIABLES if variables.get(name)}
    portable = PORTABLE_ENVIRONMENT.items() <= known.items()
    rest = {name: value for name, value in known.items() if not portable or name not in PORTABLE_ENVIRONMENT}
    return ",".join([PORTABLE if portable else NATIVE, *(f"{name}={rest[name]}" for name in sorted(rest))])


def compiled_apart(numerics: str) -> dict[str, str]:
    """Returns the variable by which torch keeps what it compiled under a setting, apart from what it compiled under
    others: its cache does not ask for which instructions, and code for registers of another width computes something
    else."""
    folder = Path(os.environ.get(COMPILED) or cache_folder() / "compiled")
    return {COMPILED: str(folder / re.sub(r"\W+", "-", numerics))}


def off_the_clock(device: str = "cpu") -> str:
    """Returns the setting of runs that are counted and learned here: the portable one where the CPU has it, with what
    else the user's environment says. On an accelerator the bits are that one's own."""
    chosen = {name: os.environ[name] for name in FURTHER if name in os.environ}
    portable = device == "cpu" and has(PORTABLE)
    return spelled({**(PORTABLE_ENVIRONMENT if portable else _chosen()), **chosen})


def on_the_clock() -> str:
    """Returns the setting of what is timed: the machine's own, or what the user's environment says."""
    return spelled(os.environ)


def check_environment() -> None:
    """Raises ValueError where the user's environment asks for instructions that this CPU does not have."""
    for name, value in _chosen().items():
        if (flag := FLAGS.get(value.lower())) and not has(flag):
            raise ValueError(f"{name}={value} asks for {flag}, which this CPU does not have; unset {name}")


def has(flag: str) -> bool:
    """Tells whether this is an x86-64 CPU with the instructions ``flag``. Where that cannot be read, it has not."""
    return platform.machine().lower() in ("x86_64", "amd64") and flag in _flags()


def _chosen() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}


@cache
def _flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        rows = re.findall(r"^flags\s*:(.*)$", cpuinfo.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(rows[0].split()) if rows else frozenset()
