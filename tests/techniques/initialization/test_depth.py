"""Baselines of any depth, and the study of which of them train."""

import math
from pathlib import Path

import pytest
import torch

from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.loop.stack import Stack
from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from suite.topics.studies.study import study_of
from techniques.initialization.shared import depth, depth_study
from techniques.initialization.shared.depth_study import Trained, plot

STUDIED = ("rezero", "tfixup")


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
@pytest.mark.parametrize("blocks", [1, 7])
def test_a_baseline_of_any_depth_begins_with_its_own_blocks(baseline: str, blocks: int) -> None:
    setting = Setting(baseline=baseline, size="pico", recipe="classic", steps=4)
    plain, other = (depth.deep_run(setting, Stack({}), each) for each in (2, blocks))
    assert other.anatomy.depth == blocks
    for one, two in zip(plain.anatomy.blocks, other.anatomy.blocks):
        assert all(torch.equal(*pair) for pair in zip(one.module.parameters(), two.module.parameters(), strict=True))
    if blocks == 7:
        first, fifth = (other.anatomy.blocks[i].linears[0].module.weight for i in (0, 4))
        assert not torch.equal(first, fifth)
        assert torch.equal(first.flatten().sort().values, fifth.flatten().sort().values)
    other.train(1)
    assert baselines()[baseline].model is not other.baseline.model


def test_the_slope_is_the_power_of_the_depth() -> None:
    assert depth.slope([4, 8, 16], [3 * d**0.5 for d in (4, 8, 16)]) == pytest.approx(0.5)
    assert depth.slope([4, 8], [1.0, math.nan]) == math.inf == depth.slope([4, 8], [1.0, math.inf])


@pytest.mark.parametrize("technique", STUDIED)
def test_the_study_has_three_sides_at_every_depth(technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_study, "DEPTHS", (2, 3))
    question = study_of(catalogue()[technique])
    lab = Lab(Setting(baseline="gpt", size="pico", recipe="classic", steps=2), Path(), seeds=2, minutes=10.0)
    trained, steps = question.study(lab)
    rows = [Trained(*row) for row in trained.rows]
    assert {(row.side, row.depth) for row in rows} == {
        (side, blocks) for side in ("with norms", "without norms", technique) for blocks in (2, 3)
    }
    assert all(row.seeds == 2 and row.trained == 0 and row.loss > row.bar for row in rows)
    assert len(steps.rows) == 6 and all(min(row[2], row[4]) > 0 for row in steps.rows)
    assert len(question.plot([trained, steps]).axes) == 2


def test_what_diverged_is_a_cross_and_no_loss() -> None:
    rows = [tuple(Trained("with norms", blocks, 1, 0.0, loss, 3.0)) for blocks, loss in ((4, 2.0), (8, math.inf))]
    trained, steps = (
        depth_study.StudyTable(*each)
        for each in (
            ("trainable_depth", Trained._fields, rows),
            ("one_step", depth_study.Step._fields, []),
        )
    )
    lines = plot([trained, steps]).axes[0].lines
    assert [list(line.get_xdata()) for line in lines[:2]] == [[4], [8]]
