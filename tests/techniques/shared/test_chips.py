"""The accelerator model against arithmetic by hand, the papers' own tables, and what stands beside what."""

from collections.abc import Callable
from pathlib import Path

import pytest

from suite.entries.catalogue import catalogue
from techniques.attention.a3 import chip as of_a3
from techniques.attention.dota import chip as of_dota
from techniques.attention.elsa import chip as of_elsa
from techniques.attention.sanger import chip as of_sanger
from techniques.attention.vitcod import chip as of_vitcod
from techniques.shared.chips.headlines import Beside, between, headlines
from techniques.shared.chips.model import (
    Chip,
    Phase,
    bound_s,
    chips,
    compute_s,
    context,
    energy_j,
    energy_tables,
    interval,
    time_s,
)
from techniques.shared.chips.numbers import Number, drift, gpu_attention_s, numbers, quoted

KNOWN = {"clock_hz": "memory", "units": "paper", "bytes_per_s": "code"}
SMALL = Chip("small", "a small one", 10.0, 4.0, 16, 8.0, source=KNOWN)
RECORDED = [{"density": 0.25, "load_balance": 0.5, "loads": 0.5, "candidates": 0.4}]
MODELLED: dict[str, Callable[[], list[Number]]] = {
    "a3": lambda: of_a3.modelled(RECORDED),
    "dota": lambda: of_dota.modelled(RECORDED),
    "elsa": lambda: of_elsa.modelled(RECORDED),
    "sanger": lambda: of_sanger.modelled(RECORDED),
    "vitcod": of_vitcod.modelled,
}


def folder(technique: str) -> Path:
    return catalogue()[technique].folder


def test_a_phase_takes_the_longer_of_computing_and_loading():
    whole, narrow, idle = Phase(400, 16, 16), Phase(400, 4, 16), Phase(400, 16, 16, 0.5)
    assert compute_s(whole, SMALL) == 10 and compute_s(narrow, SMALL) == 10 / 16 and compute_s(idle, SMALL) == 20
    assert time_s([whole, narrow, idle], SMALL) == 10 + 2 + 20
    assert bound_s([whole, narrow, idle], SMALL) == 10 + 10 / 16 + 10
    assert bound_s([narrow, narrow], SMALL) == 4
    with pytest.raises(ValueError, match=r"in \(0, 1\], not 0"):
        compute_s(whole._replace(busy=0.0), SMALL)


def test_no_schedule_is_below_the_closed_form_and_what_is_guessed_makes_an_interval():
    own = of_dota.phases(2048, 0.1, 0.7)
    for each in chips().values():
        assert bound_s(own, each) <= time_s(own, each) * (1 + 1e-12)
    least, most = interval([Phase(400, 16, 16)], SMALL)
    assert (least, most) == (5, 20)  # the clock alone is from memory
    sanger = chips()["sanger"]
    assert interval(own, sanger) == (time_s(own, sanger), time_s(own, sanger))


def test_every_constant_has_a_source_and_energies_are_those_of_the_tables():
    for each in chips().values():
        known = {name for name in ("clock_hz", "units", "bits", "bytes_per_s", "power_w") if getattr(each, name)}
        assert set(each.source) == known and set(each.source.values()) <= {"paper", "code", "second-hand", "memory"}
    tables = energy_tables()
    assert len(tables) > 1 and all(each.source for each in tables)
    assert tables[0].mac_pj(8) == pytest.approx(0.2, rel=0.15)  # of int8, by Horowitz
    assert energy_j([Phase(1e12, 32, 0)], tables[0]) == pytest.approx(3.2)
    assert energy_j([Phase(0, 32, 1e12)], tables[1]) == pytest.approx(560)


def test_a_tpus_clock_is_that_of_its_peak_and_figures_of_context_are_quoted():
    tpu = chips()["tpu"]
    assert 92e12 / (2 * tpu.units) == pytest.approx(tpu.clock_hz, rel=0.01)
    assert [(each.low, each.high) for each in context()] == [(30, 80), (15, 30), (None, None)]
    assert all(each.place and each.conditions for each in context())


def test_vitcods_simulator_gives_its_log_again():
    rows = of_vitcod.modelled()
    assert of_vitcod.totals() == (9492, 8 * 9437)
    assert "4709 of them computing" in rows[0].inputs
    (whole,) = [each for each in rows if "end to end" in each.what]
    assert whole.speedup == pytest.approx(1.005, abs=5e-4)


def test_sangers_released_model_and_without_its_slip():
    released, corrected = of_sanger.modelled([])[:2]
    assert (released.level, corrected.level) == ("replay, as released", "replay, corrected")
    assert released.speedup == pytest.approx(1.59, abs=0.005) and corrected.speedup == pytest.approx(1.27, abs=0.005)
    prediction, scores, values = of_sanger.phases(512, 0.1, 0.5)
    chip = chips()["sanger"]
    whole = compute_s(of_sanger.dense(512)[0], chip)
    assert compute_s(prediction, chip) == pytest.approx(whole / 16)
    assert compute_s(scores, chip) == compute_s(values, chip) == pytest.approx(0.2 * whole)


def test_elsas_and_a3s_pipelines_wait_for_their_longest_stage():
    assert of_elsa.dense_cycles(512) == 512 * 128
    assert of_elsa.cycles(512, 0) == 512 * 3 + 512 * 16  # the filter's 16 cycles
    assert of_elsa.cycles(512, 128) == 512 * 3 + 512 * 32
    twelve = next(each for each in of_elsa.modelled([]) if "unfused" in each.against)
    assert twelve.speedup == pytest.approx(5.07, abs=0.005)
    assert [each.speedup for each in of_a3.modelled([])] == [2, 8]
    assert of_a3.modelled(RECORDED)[-1].speedup == 2  # the search's pops, and not the candidates
    assert of_a3.cycles(10, 40, 20) == 40


def test_dota_loads_what_its_masks_do_not_share():
    unshared, shared = of_dota.phases(2048, 0.1, 1.0), of_dota.phases(2048, 0.1, 0.25)
    assert shared[0] == unshared[0] and shared[1].bytes < unshared[1].bytes and shared[1].macs == unshared[1].macs
    assert [each.bytes for each in of_dota.dense(8)] == [(8 + 8 * 8 / 4) * 2 * 64 * 12] * 2  # four queries at once
    rows = MODELLED["dota"]()
    assert max(each.speedup or 0 for each in rows if "V100" in each.against) < 152.6 / 10
    lanes = [each.speedup for each in rows if each.what.startswith("4 lanes")]
    assert len(lanes) == 4 and max(lanes) > min(lanes)
    assert "from memory: clock_hz, units, bytes_per_s" in rows[0].inputs


def test_unfused_attention_is_slower_on_the_papers_gpu_and_scores_make_the_difference():
    single, half = (each.speedup or 0 for each in drift(4096))
    assert half > single > 1  # tensor cores leave the memory to wait for
    unfused, fused = (gpu_attention_s(4096, 64, 1, fused=each, half=True) for each in (False, True))
    assert unfused - fused == pytest.approx(2 * 4 * 4096**2 / (0.86 * 900e9), rel=0.4)  # four passes over the scores


@pytest.mark.parametrize("technique", MODELLED)
def test_what_is_quoted_modelled_and_measured_stands_apart(technique):
    literature, rows = quoted(folder(technique)), MODELLED[technique]()
    assert {each.kind for each in literature} == {"literature"} and {each.kind for each in rows} == {"modelled"}
    assert all(each.level and each.inputs and (each.speedup or 0) > 0 for each in rows)
    here = Number("measured", "it", "fused attention on this machine", 0.5)
    table = numbers([here, *rows, *literature])
    kinds = [row[0] for row in table.rows]
    assert kinds == ["literature"] * len(literature) + ["modelled"] * len(rows) + ["measured"]


@pytest.mark.parametrize(("technique", "headline"), [("dota", 152.6), ("elsa", 58.1), ("outerspace", 7.9)])
def test_headlines_are_those_of_the_cards(technique, headline):
    assert any(each.speedup == pytest.approx(headline, rel=2e-3) for each in quoted(folder(technique)))


def test_a_headline_without_a_number_beside_it_is_an_error():
    beside = Beside(between([3.0, 1.0, 2.0, 9.0], "it"), 0.5, "here", 1.4, None, "drift: no GPU")
    found = headlines(folder("elsa"), {"speed": beside})
    assert dict(zip(found.columns, found.rows[0], strict=True)) == {
        "claim": "speed",
        "quoted": 58.1,
        "modelled": 2.0,
        "least": 1.0,
        "most": 9.0,
        "measured": 0.5,
        "drift_modelled": 1.4,
        "drift_measured": None,
        "modelled_of": "it",
        "measured_of": "here",
        "unavailable": "drift: no GPU",
    }
    with pytest.raises(ValueError, match="has the headlines speed, and found are other"):
        headlines(folder("elsa"), {"other": beside})


def test_what_is_from_memory_makes_the_range_of_a_headline():
    assert of_elsa.over_gpu([])[:3] == pytest.approx((5.07, 5.07 / 2, 5.07 * 2), abs=0.01)
    assert of_a3.over_itself([])[:3] == (2, 2, 8)
    own, (least, most) = of_dota.over_gpu([]), (of_dota.over_gpu([]).least, of_dota.over_gpu([]).most)
    assert least < own.speedup < most < 152.6
    released = of_vitcod.over_gpu()
    assert released.most / released.least == pytest.approx(8 * 9437 / 9492)
    sparser, denser = of_sanger.over_gpu([]).most, of_sanger.over_gpu([]).least
    assert sparser > denser > 0
