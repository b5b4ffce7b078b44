"""The machine code of every kernel as it was compiled last: ``compiled.json``, by the sources that decide it.

    python -m tests.kernels.compiled    compiles those whose sources changed, and keeps what they became

To compile all takes three minutes of a core. Where neither a kernel's sources nor the compiler changed, its machine
code is what is kept here, and a run of the tests holds that against the kernel's budget; it compiles the others, and in
any case those of the entries that are tried in every run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from suite.kernels import gates
from suite.kernels.gates import MachineCode
from suite.record.files import replacing
from tests.runs import IN_EVERY_RUN

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".json")


@cache
def kept() -> dict[str, dict[str, Any]]:
    """By module: ``sources_sha256``, and the ``codes`` of its kernels by name."""
    known: dict[str, dict[str, Any]] = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    return known


def modules() -> Iterator[str]:
    """Those of techniques that declare what their kernels may become."""
    for path in sorted((ROOT / "techniques").rglob("*kernel.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if hasattr(import_module(name), "MANIFESTS"):
            yield name


def is_as_compiled(module: str) -> bool:
    return kept().get(module, {}).get("sources_sha256") == gates.sources_sha256(module)


def machine_code(module: str) -> dict[str, MachineCode]:
    """As :func:`suite.kernels.gates.machine_code` says, or as it said of the same sources."""
    if not IN_EVERY_RUN.isdisjoint(module.split(".")) or not is_as_compiled(module):
        return gates.machine_code(module)
    return gates.parsed(json.dumps(kept()[module]["codes"]))


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # as the tests import them
    compiled = {}
    for module in modules():
        if is_as_compiled(module):
            compiled[module] = kept()[module]
            continue
        print(module, flush=True)
        codes = {name: asdict(code) for name, code in gates.machine_code(module).items()}
        compiled[module] = {"sources_sha256": gates.sources_sha256(module), "codes": codes}
    lines = ",\n".join(f"{json.dumps(module)}: {json.dumps(each)}" for module, each in compiled.items())
    with replacing(KEPT) as file:
        file.write_text(f"{{\n{lines}\n}}\n", "utf-8")  # a line each: a changed kernel is one in a diff


if __name__ == "__main__":
    main()
