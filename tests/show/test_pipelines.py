"""The picture of a schedule has every pass once, and the bubble in words."""

from __future__ import annotations

from xml.etree import ElementTree

from suite.pipeline.timetable import flushed, steady
from suite.show.pipelines import SHOWN_UNITS, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_every_pass_is_a_box_and_the_bubble_is_said():
    schedule = flushed(2, 2, lambda stage: [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)])
    root = ElementTree.fromstring(picture(schedule).file())
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert len(titles) == len(set(titles)) >= 4 * 2 * SHOWN_UNITS // 9
    assert "backward pass of micro-batch 1 on stage 0, version 0" in titles
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert words[-1] == "2 ranks, 2 micro-batches a training step: the ranks wait 33 % of the time"


def test_of_a_pipeline_that_never_drains_the_middle_is_said():
    schedule = steady(2, 1, lambda stage: 1 - stage, lambda kind, stage, micro, step: 0)
    words = [each.text for each in ElementTree.fromstring(picture(schedule).file()).iter(f"{SVG}text")]
    assert words[-1] == "2 ranks, 1 micro-batch a training step: once it is full, the ranks wait 0 % of the time"
