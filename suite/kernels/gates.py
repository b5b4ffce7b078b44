"""Holds machine code of Triton kernels, for a GPU that need not be there, against a budget.

Triton compiles for any target (``GPUTarget``), and its wheel brings the disassembler. So registers, spills, the width
of loads and the number of instructions are known, and can be gated on, without a device: what a GPU adds is time.

Kernels must be decorated without TRITON_INTERPRET to be compiled, so this runs in a process of its own
(``python -m suite.kernels.gates MODULE``). Its results are kept under a hash of the sources that decide them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from suite.kernels.manifest import Budget, Manifest
from suite.process.programs import finished
from suite.record.files import cache_folder, replacing

CAPABILITY = 90  # Hopper
COMPILE_LIMIT_S = 600
_WARP_THREADS = 32
_WIDEST_BITS = 128

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_REGISTERS = re.compile(r"\bREG:(\d+)")
_STATIC_SHARED = re.compile(r"\bSHARED:(\d+)")
_WIDTH = re.compile(r"\.(?:[US]?(8|16)|(64|128))(?:\.|$)")


@dataclass(frozen=True)
class MachineCode:
    """Describes what a kernel became. Widths map bits of one thread's global access to the number of such instructions.

    ``instructions`` are static, padding excluded; ``instructions_per_element`` are lane-instructions, all paths
    together: an upper bound for code without loops. ``spills`` are accesses to local memory.
    """

    registers: int
    spills: int
    shared_bytes: int
    load_widths: Mapping[int, int]
    store_widths: Mapping[int, int]
    instructions: int
    instructions_per_element: float
    has_hgmma: bool


def check(code: MachineCode, budget: Budget) -> list[str]:
    """Tells how ``code`` breaks ``budget``, in words; empty where it does not."""
    per_element = budget.instructions_per_element
    wide_loads, wide_stores = code.load_widths.get(_WIDEST_BITS, 0), code.store_widths.get(_WIDEST_BITS, 0)
    return [
        message
        for violated, message in (
            (code.registers > budget.registers, f"{code.registers} registers, over {budget.registers}"),
            (code.spills > budget.spills, f"{code.spills} spills, over {budget.spills}"),
            (code.shared_bytes > budget.shared_bytes, f"{code.shared_bytes} shared bytes, over {budget.shared_bytes}"),
            (budget.wide_loads not in (None, wide_loads), f"{wide_loads} loads of 16 bytes, not {budget.wide_loads}"),
            (
                budget.wide_stores not in (None, wide_stores),
                f"{wide_stores} stores of 16 bytes, not {budget.wide_stores}",
            ),
            (
                per_element is not None and code.instructions_per_element > per_element,
                f"{code.instructions_per_element:.1f} instructions an element, over {per_element}",
            ),
            (budget.needs_hgmma and not code.has_hgmma, "no HGMMA: the matrix product misses Hopper's tensor cores"),
        )
        if violated
    ]


def machine_code(module: str) -> dict[str, MachineCode]:
    """Returns the machine code of every entry of ``module``'s ``MANIFESTS``, by name.

    Results are kept in the cache folder. Raises RuntimeError with the compiler's own words where a kernel does not
    compile.
    """
    path = cache_folder() / "machine_code" / f"{sources_sha256(module)}.json"
    try:
        return parsed(path.read_text())
    except (OSError, ValueError, TypeError, KeyError):
        pass  # not there, or damaged: compile
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = finished([sys.executable, "-m", "suite.kernels.gates", module], environment, COMPILE_LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{module} does not compile for sm_{CAPABILITY}:\n{done.stderr.strip()}")
    codes = parsed(done.stdout)
    with replacing(path) as partial:
        partial.write_text(done.stdout)
    return codes


def compiled(manifest: Manifest) -> MachineCode:
    """Compile one kernel here and now. Only in a process without TRITON_INTERPRET; see `machine_code` otherwise."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = manifest.kernel
    if not isinstance(kernel, triton.JITFunction):
        raise RuntimeError(
            f"{kernel.__name__} was decorated for the interpreter: unset TRITON_INTERPRET, or use machine_code()"
        )
    source = ASTSource(
        fn=kernel,
        signature={name: manifest.signature.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={_path(manifest, name): value for name, value in manifest.constants.items()},
        attrs={_path(manifest, name): [["tt.divisibility", 16]] for name in manifest.aligned},
    )
    options = {"num_warps": manifest.num_warps, "num_stages": manifest.num_stages, **manifest.options}
    binary = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, _WARP_THREADS), options=options)
    sass, usage = _disassembled(binary.asm["cubin"])
    threads = manifest.num_warps * _WARP_THREADS
    return read(sass, usage, binary.metadata.shared, manifest.elements_per_program / threads)


def _path(manifest: Manifest, name: str) -> tuple[int, ...]:
    """Returns where Triton has an argument, or a part of one that is a named tuple."""
    argument, _, part = name.partition(".")
    place = manifest.kernel.arg_names.index(argument)
    return (place, manifest.signature[argument]._fields.index(part)) if part else (place,)


def read(sass: str, usage: str, dynamic_shared_bytes: int, elements_per_thread: float) -> MachineCode:
    """Reads machine code from cuobjdump's listing (``-sass``) and resource line (``-res-usage``)."""
    registers, static_shared = _REGISTERS.search(usage), _STATIC_SHARED.search(usage)
    opcodes = [opcode for opcode in _INSTRUCTION.findall(sass) if not opcode.startswith("NOP")]
    if not opcodes or registers is None or static_shared is None:
        raise RuntimeError("cuobjdump printed no machine code that could be read: its format may have changed")
    names = Counter(opcode.split(".")[0] for opcode in opcodes)
    instructions = len(opcodes)
    return MachineCode(
        registers=int(registers[1]),
        spills=names["LDL"] + names["STL"],
        shared_bytes=int(static_shared[1]) + dynamic_shared_bytes,
        load_widths=_widths(opcodes, "LDG"),
        store_widths=_widths(opcodes, "STG"),
        instructions=instructions,
        instructions_per_element=instructions / elements_per_thread,
        has_hgmma="HGMMA" in names,
    )


def _widths(opcodes: list[str], name: str) -> dict[int, int]:
    return dict(sorted(Counter(_bits(opcode) for opcode in opcodes if opcode.split(".")[0] == name).items()))


def _bits(opcode: str) -> int:
    width = _WIDTH.search(opcode)
    return int(width[1] or width[2]) if width else 32


def _disassembled(cubin: bytes) -> tuple[str, str]:
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        sass, usage = (
            subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=True).stdout
            for option in ("-sass", "-res-usage")
        )
    return sass, usage


def parsed(text: str) -> dict[str, MachineCode]:
    """Reads machine code by kernel, from its JSON. Raises ValueError, TypeError, KeyError where it is none."""

    def widths(code: dict[str, dict[str, int]], name: str) -> dict[int, int]:
        return {int(bits): count for bits, count in code[name].items()}

    return {
        name: MachineCode(
            **{**code, "load_widths": widths(code, "load_widths"), "store_widths": widths(code, "store_widths")}
        )
        for name, code in json.loads(text).items()
    }


@cache
def sources_sha256(module: str) -> str:
    """Hashes the compiler's version and what may be in a kernel: the syntax trees, without docstrings, of ``module``
    and of what it imports from its own package and from this one. The rest of the harness has no kernels."""
    digest = hashlib.sha256(f"{CAPABILITY} {version('triton')} ".encode())
    for name, path in sorted(_sources(import_module(module))):
        tree = ast.dump(_without_docstrings(ast.parse(path.read_bytes())))
        digest.update(f"{name} ".encode() + hashlib.sha256(tree.encode()).digest())
    return digest.hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _sources(module: ModuleType) -> Iterator[tuple[str, Path]]:
    packages = f"{module.__name__.partition('.')[0]}.", f"{__name__.rpartition('.')[0]}."
    seen = {__name__}
    waiting = [module.__name__, __name__]
    while waiting:
        current = sys.modules[waiting.pop()]
        if current.__file__:
            yield current.__name__, Path(current.__file__)
        for value in vars(current).values():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and f"{name}.".startswith(packages) and name in sys.modules and name not in seen:
                seen.add(name)
                waiting.append(name)


def _main(module: str) -> None:
    manifests: dict[str, Manifest] = import_module(module).MANIFESTS
    print(json.dumps({name: asdict(compiled(manifest)) for name, manifest in manifests.items()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
