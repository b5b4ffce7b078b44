"""The picture of a schedule has every pass once, and the bubble in words."""

from __future__ import annotations

from xml.etree import ElementTree

from suite.pipeline.schedule import flushed
from suite.show.pipelines import picture


def test_every_pass_is_a_box_and_the_bubble_is_said():
    schedule = flushed(2, 2, lambda stage: [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)])
    drawing = picture(schedule, steps=1)
    root = ElementTree.fromstring(drawing.file())
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(set(titles)) == 2 * 2 * 2
    assert "backward pass of micro-batch 1 on stage 0, version 0" in titles
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[-1] == "2 ranks, 1 training steps of 2 micro-batches: the ranks wait 33% of the time"
