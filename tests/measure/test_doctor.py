"""Which machine of a results folder this one is, and that one which shows nothing of itself is still usable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.measure.doctor import among
from suite.record import machine as machines
from suite.record.schema import Line
from suite.record.store import Store
from suite.show.pages.board import machine_line
from tests.factories import evidence, machine, put, records
from tests.plugin import called

OLD = machine("amd-epyc-2c-24g-old", cpu="AMD EPYC", cores=2, memory_gib=24, gpu=None)
HERE = machine("amd-epyc-f25m17-2c-24g-here", **OLD.facts, cpu_family=25, cpu_model=17, nominal_mhz=2600)
OTHER = machine("amd-epyc-f25m1-2c-24g-other", **HERE.facts | {"cpu_model": 1, "nominal_mhz": 2450})
FAR = machine("x-64c", **HERE.facts | {"cpu": "x", "cores": 64, "cpu_model": 3, "nominal_mhz": 1000})


def of(which, stack: str) -> list[Line]:
    """Evidence of a machine, two timings and more, each line with an id of its own."""
    lines = evidence(stack, seeds=1, replicates=2, ruler=False)
    return [each.model_copy(update={"machine": which, "id": f"{which.key}{each.id}"}) for each in lines]


def test_the_equal_machine_is_named_with_its_timings():
    said = among(HERE, records(of(HERE, "x"), of(OTHER, "x")))
    assert said[0].startswith(f"this machine is {HERE.name}, all facts are equal: its timings (2) count here")
    assert "travel" in said[1] and len(said) == 2


def test_without_an_equal_one_none_of_the_timings_counts_and_the_nearest_is_told_by_its_facts():
    said = among(HERE, records(of(FAR, "x"), of(OTHER, "x")))
    assert said[0].startswith("this machine is none of these: ") and "none of their timings (4) counts here" in said[0]
    assert said[2] == (
        f"the nearest is {OTHER.name}: cpu_model is 1 there, 17 here; nominal_mhz is 2450 there, 2600 here"
    )


def test_a_machine_of_fewer_facts_is_never_this_one_though_all_that_it_has_is_equal():
    said = among(HERE, records(of(OLD, "x")))
    assert "none of their timings (2) counts here" in said[0]
    assert said[2] == (
        f"the nearest is {OLD.name}: not recorded there: cpu_family, cpu_model, nominal_mhz; it may be the same, but "
        "nothing shows that"
    )


def test_the_command_looks_into_the_folder_that_is_named(tmp_path: Path):
    assert "there are no records yet" in called("doctor", "--results", tmp_path)[1]
    put(tmp_path, of(OLD, "x"), OLD.name)
    told = json.loads(called("doctor", "--results", tmp_path, "--json")[1])
    (heading,) = (each for each in told if each.startswith("machines of "))
    assert any(f"the nearest is {OLD.name}" in line for line in told[heading])


def test_where_no_cpu_can_be_read_it_measures_and_says_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    empty = tmp_path / "empty"
    empty.mkdir()
    read = machines.read_facts
    monkeypatch.setattr(machines, "read_facts", lambda device, threads: read(device, threads, empty))
    monkeypatch.setattr(machines, "unread", lambda facts, told=machines.unread: told(facts, empty))
    monkeypatch.setattr("suite.measure.campaign.busy_cores", lambda: 0.0)
    machines.fingerprint.cache_clear()
    try:
        code, _, error = called(
            "compare",
            "lion",
            "-b",
            "gpt",
            "--size",
            "pico",
            "--steps",
            8,
            "--rounds",
            2,
            "--seeds",
            1,
            "--timings",
            1,
            "--no-tune",
            "--results",
            tmp_path / "results",
        )
        assert code == 0, error
        doctor = called("doctor", "--results", tmp_path / "results")[1]
    finally:
        machines.fingerprint.cache_clear()
    kept, problems = Store(tmp_path / "results").read()
    (timed,) = kept.timed
    assert not problems and timed.machine.facts["cpu_family"] is None and timed.machine.facts["instance"]
    assert timed.machine.context["unread"]["cpu_family"] == "/proc/cpuinfo is missing or empty"
    assert "cpu_family: None (/proc/cpuinfo is missing or empty)" in doctor
    assert f"this machine is {timed.machine.name}, all facts are equal: its timings (1) count here" in doctor
    assert "family" not in machine_line(timed.machine.facts)


def test_a_line_about_a_machine_says_what_tells_it_apart_or_that_it_was_not_recorded():
    assert "AMD EPYC family 25 model 17, 2 cores, 2600 MHz" in machine_line(HERE.facts)
    assert "not recorded: cpu_family, cpu_model" in machine_line(OLD.facts)
