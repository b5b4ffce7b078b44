"""The gates see in machine code for sm_90 what they are there for; no GPU takes part."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from suite.kernels import gates
from suite.kernels.gates import MachineCode, check, read
from suite.kernels.manifest import Budget

FINE = MachineCode(
    registers=32,
    spills=0,
    shared_bytes=1024,
    load_widths={32: 1, 128: 4},
    store_widths={128: 2},
    instructions=64,
    instructions_per_element=8.0,
    has_hgmma=True,
)
TIGHT = Budget(
    registers=32,
    spills=0,
    shared_bytes=1024,
    wide_loads=4,
    wide_stores=2,
    instructions_per_element=8.0,
    needs_hgmma=True,
)

LISTING = """
\t\tFunction : kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR6][R4.64] ; /* 0x0000000604047981 */
        /*0020*/                   LDG.E.U16 R2, desc[UR6][R2.64] ;  /* 0x0000000602027981 */
        /*0030*/                   LDG.E.EF.64 R2, desc[UR6][R2.64] ;/* 0x0000000602027981 */
        /*0040*/              @UP0 LDL R3, [R1] ;                    /* 0x0000000001037983 */
        /*0050*/                   STG.E desc[UR6][R8.64], R4 ;      /* 0x0000000408007986 */
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4] ; /* 0x00e00000041879f0 */
        /*0070*/                   EXIT ;                            /* 0x000000000000794d */
        /*0080*/                   NOP;                              /* 0x0000000000007918 */
"""
USAGE = "Resource usage:\n Function kernel:\n  REG:40 STACK:8 SHARED:16 LOCAL:0 CONSTANT[0]:560 TEXTURE:0"


def test_listing_is_read() -> None:
    assert read(LISTING, USAGE, dynamic_shared_bytes=1000, elements_per_thread=4) == MachineCode(
        registers=40,
        spills=1,
        shared_bytes=1016,
        load_widths={16: 1, 64: 1, 128: 1},
        store_widths={32: 1},
        instructions=8,
        instructions_per_element=2.0,
        has_hgmma=True,
    )


def test_unreadable_listing_is_an_error_not_a_pass() -> None:
    with pytest.raises(RuntimeError, match="format may have changed"):
        read("", USAGE, 0, 1)


def test_exactly_the_budget_passes() -> None:
    assert check(FINE, TIGHT) == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"registers": 33}, "33 registers, over 32"),
        ({"spills": 1}, "1 spills, over 0"),
        ({"shared_bytes": 1025}, "1025 shared bytes, over 1024"),
        ({"load_widths": {64: 8}}, "0 loads of 16 bytes, not 4"),
        ({"load_widths": {128: 8}}, "8 loads of 16 bytes, not 4"),
        ({"store_widths": {128: 1, 32: 4}}, "1 stores of 16 bytes, not 2"),
        ({"instructions_per_element": 8.5}, "8.5 instructions an element, over 8.0"),
        ({"has_hgmma": False}, "no HGMMA"),
    ],
)
def test_each_fault_is_named(fault: dict, message: str) -> None:
    (violation,) = check(dataclasses.replace(FINE, **fault), TIGHT)
    assert message in violation


def _importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in the process that compiles."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def test_specimens_compile_and_only_the_faulty_ones_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _importable(Path(__file__).parent, monkeypatch)
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    codes = gates.machine_code("_specimens")
    from _specimens import MANIFESTS

    violations = {name: check(code, MANIFESTS[name].budget) for name, code in codes.items()}
    assert violations == {
        "aligned": [],
        "unaligned": ["0 loads of 16 bytes, not 2", "0 stores of 16 bytes, not 2"],
        "rereading": ["4 loads of 16 bytes, not 2"],
        "narrowing": [],
        "product": [],
    }
    # The second time nothing is compiled.
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert gates.machine_code("_specimens") == codes


def test_a_kernel_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_kernel.py").write_text(
        "import triton\nimport triton.language as tl\nfrom suite.kernels.manifest import Manifest\n"
        "@triton.jit\ndef broken(x):\n    tl.store(x, tl.no_such_function(1))\n"
        "MANIFESTS = {'broken': Manifest(broken, {'x': '*fp32'}, {}, 1)}\n"
    )
    _importable(tmp_path, monkeypatch)
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="no_such_function"):
        gates.machine_code("broken_kernel")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_the_sources_of_a_kernel_are_hashed_by_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _importable(tmp_path, monkeypatch)
    seen = []
    for text in (
        "def f(a, b): return a",
        "def f(  # laid out\n    a,\n    b,\n):\n    'What it is.'\n    return a",
        "def f(a, b): return b",
    ):
        (tmp_path / "laid_out_kernel.py").write_text(text)
        seen.append(gates.sources_sha256.__wrapped__("laid_out_kernel"))
    assert seen[0] == seen[1] != seen[2]
