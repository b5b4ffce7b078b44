"""The arithmetic of a run: spelled one way, portable whatever the CPU has more, refused where the CPU lacks it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.record import numerics
from suite.record.numerics import (
    COMPILED,
    NATIVE,
    PORTABLE,
    PORTABLE_ENVIRONMENT,
    VARIABLES,
    compiled_apart,
    environment,
    off_the_clock,
    spelled,
)
from suite.record.schema import bits_of
from tests import factories


@given(st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["avx2", "AVX2", "COMPATIBLE", "default"])))
def test_a_setting_is_spelled_and_read_back(variables: dict[str, str]) -> None:
    text = spelled(variables)
    assert environment(text) == variables and spelled(environment(text)) == text
    assert text.split(",")[0] == (PORTABLE if PORTABLE_ENVIRONMENT.items() <= variables.items() else NATIVE)


@pytest.mark.parametrize("text", ["", "avx512", "avx2,", "native,MKL_CBWR", "native,MKL_CBWR=a b"])
def test_what_spells_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no setting of the arithmetic"):
        environment(text)


def test_what_is_off_the_clock_is_portable_whatever_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "has", lambda flag: True)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert (off_the_clock(), off_the_clock("cuda"), numerics.on_the_clock()) == (PORTABLE, NATIVE, NATIVE)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert off_the_clock() == "avx2,MKL_CBWR=COMPATIBLE"
    assert numerics.on_the_clock() == "native,ATEN_CPU_CAPABILITY=default,MKL_CBWR=COMPATIBLE"
    monkeypatch.setattr(numerics, "has", lambda flag: False)
    assert off_the_clock() == "native,ATEN_CPU_CAPABILITY=default,MKL_CBWR=COMPATIBLE"


def test_instructions_that_the_cpu_lacks_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(numerics, "_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    numerics.check_environment()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx512")
    with pytest.raises(ValueError, match="ATEN_CPU_CAPABILITY=avx512 asks for avx512f, which this CPU does not have"):
        numerics.check_environment()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not numerics.has("avx2")


def test_a_cpu_that_cannot_be_read_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert numerics._flags(tmp_path / "none") == numerics._flags(tmp_path / "empty") == frozenset()


def test_bits_of_one_portable_arithmetic_are_the_same_on_all_machines_and_native_ones_on_one() -> None:
    here = factories.MACHINE.model_copy(update={"facts": {"torch": "2.15"}})
    there = here.model_copy(update={"key": "e" * 16})
    assert bits_of(PORTABLE, here) == bits_of(PORTABLE, there) == "avx2 torch 2.15"
    assert bits_of(NATIVE, here) != bits_of(NATIVE, there)
    other = there.model_copy(update={"facts": {"torch": "2.16"}})
    assert bits_of(PORTABLE, other) != bits_of(PORTABLE, here) != bits_of("avx2,MKL_CBWR=AVX2", here)


def test_what_is_compiled_under_one_setting_is_kept_apart_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILED, raising=False)
    folders = [compiled_apart(each)[COMPILED] for each in (PORTABLE, NATIVE, f"{PORTABLE},MKL_CBWR=COMPATIBLE")]
    assert len({*folders}) == 3
    monkeypatch.setenv(COMPILED, "/of/a/user")
    assert compiled_apart(PORTABLE) == {COMPILED: f"/of/a/user/{PORTABLE}"}
