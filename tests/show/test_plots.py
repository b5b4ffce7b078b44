import numpy as np
import pytest

from suite.judge.rows import pairs
from suite.show.plots import draw, figure
from tests.factories import comparison, contender, failure, record


def test_the_figure_shows_what_was_measured():
    (row,) = pairs(comparison("x", pace_s=0.03))
    loss, ratio = figure(row).axes
    lines = loss.get_lines()
    assert len(lines) == 2 * len(row.seeds)
    assert lines[0].get_xdata()[-1] == row.conditions.steps
    assert lines[1].get_xdata()[-1] == pytest.approx(1.5 * row.conditions.steps, rel=0.02)
    assert np.median(ratio.get_lines()[0].get_ydata()) == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_in_the_format_of_the_suffix(tmp_path, suffix):
    (row,) = pairs(comparison("$x_{$", seeds=1))  # a name is text, not a formula
    draw(row, tmp_path / "new" / f"plot.{suffix}")
    start = (tmp_path / "new" / f"plot.{suffix}").read_bytes()[:5]
    assert start in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_without_numbers_or_with_an_unknown_suffix_it_says_so(tmp_path):
    (failed,) = pairs([record([contender(), failure("x", "timeout", "too slow")])])
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(failed, tmp_path / "plot.png")
    (row,) = pairs(comparison("x", seeds=1))
    with pytest.raises(ValueError, match="nonsense"):
        draw(row, tmp_path / "plot.nonsense")
