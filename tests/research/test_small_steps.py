"""What is committed of a CPU's operators and of the ratios that they foretell: made again, and said as it is."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from research.small_steps import small_steps_in_words as small_steps
from research.small_steps.small_steps_in_words import FOLDER, drawing, read
from suite.record.placed import CountPlace
from suite.topics.modelled_time import device_samples as own_device
from suite.topics.modelled_time import step_traces
from suite.topics.modelled_time.device_model import CalibratedDevice

ROOT = Path(__file__).parents[2]


def kept() -> list[dict[str, str]]:
    with (FOLDER / "small_steps.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_committed_ratios_follow_from_the_committed_traces_and_constants() -> None:
    known = [own_device.read(path.parent) for path in (ROOT / "results").glob(f"*/{own_device.NAME}")]
    (cpu,) = (each for each in known if each.device == "cpu")
    device, traces = CalibratedDevice.of(cpu), step_traces.read(ROOT / "results")
    lines = kept()
    assert len(lines) > 50
    for each in lines[::10]:
        place = CountPlace(each["baseline"], "nano", "modern", "cpu", each["task"])  # type: ignore[arg-type]
        ours, theirs = (traces[place, each[side]] for side in ("stack", "reference"))
        assert ours.step is not None and theirs.step is not None
        ratio = device.step_s(ours.step, ours.steps) / device.step_s(theirs.step, theirs.steps)
        assert float(each["modelled ratio"]) == pytest.approx(ratio, rel=2e-3)


def test_the_page_says_how_far_they_agree() -> None:
    lines = [each for each in kept() if each["timing"] == "of the installed code"]
    of = spearmanr(*([float(each[name]) for each in lines] for name in ("measured ratio", "modelled ratio"))).statistic
    page = " ".join((ROOT / "docs" / "commands.md").read_text("utf-8").split())
    assert f"a rank correlation of {math.floor(100 * of) / 100:.2f}" in page


def test_a_folder_without_a_measured_device_says_what_makes_one(tmp_path: Path) -> None:
    assert "leantrain kernels --calibrate" in str(read(tmp_path))


def test_the_plot_has_a_mark_for_each_ratio_and_no_colour() -> None:
    steps = [
        small_steps.SmallStep(
            CountPlace("gpt", "nano", "modern", "cpu", "pretrain"), machine, stack, "baseline", a, b, True
        )
        for machine, stack, a, b in (("here", "x", 1.0, 1.1), ("here", "y", 2.0, 1.9), ("there", "z", 0.5, 0.4))
    ]
    drawn = drawing(small_steps.SmallSteps("here", steps)).svg()
    assert drawn.count("<circle") == 3 and "better" not in drawn and "worse" not in drawn and "Spearman 1.00" in drawn
