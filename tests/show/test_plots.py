import numpy as np
import pytest

from suite.show.plots import draw, figure
from tests.factories import learned, row
from tests.show.samples import failing, shown


def test_the_figure_shows_what_was_learned_what_every_round_cost_and_where_it_ended():
    one = row("x", pace_s=lambda progress: 0.01 + 0.02 * progress, windows=5, final=1.9, steps=100)
    loss, ratio, ruler = figure(one).axes
    assert len(loss.get_lines()) == 2 * (len(one.seeds) + 1)
    assert {line.get_xdata()[-1] for line in loss.get_lines()} == {one.conditions.steps}  # of 100 own steps, too
    for timing, line in zip(one.known.timed, ratio.get_lines(), strict=False):
        places = line.get_xdata()
        assert len(places) == len(timing.step_log_ratios) and (np.diff(places) > 0).all() and 0 < places[0] < 0.2
        assert np.median(line.get_ydata()[:4]) == pytest.approx(0.6, rel=0.05)
        assert np.median(line.get_ydata()[-4:]) == pytest.approx(1.4, rel=0.05)
    (point,) = ruler.containers
    assert point.lines[0].get_xdata()[0] == pytest.approx(1 / one.value("equivalent_budget").number)
    assert point.lines[0].get_ydata()[0] == pytest.approx(1.9, rel=0.01)


@pytest.mark.parametrize(("final", "marker", "end"), [(1.2, ">", 2.8), (3.5, "<", 0.35)])
def test_what_lies_beyond_the_curve_is_an_arrow_at_its_end(final, marker, end):
    ruler = figure(row("x", final=final)).axes[-1]
    (arrow,) = [line for line in ruler.get_lines() if line.get_marker() == marker]
    assert arrow.get_xdata()[0] == pytest.approx(end)


def test_only_the_panels_of_what_is_known_are_drawn():
    assert len(figure(row("x", replicates=0)).axes) == 2
    assert len(figure(row("x", seeds=0, ruler=False)).axes) == 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_in_the_format_of_the_suffix(tmp_path, suffix):
    one = row("$x_{$", seeds=1)  # a name is text, not a formula
    draw(one, tmp_path / "new" / f"plot.{suffix}")
    start = (tmp_path / "new" / f"plot.{suffix}").read_bytes()[:5]
    assert start in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_without_numbers_or_with_an_unknown_suffix_it_says_so(tmp_path):
    (failed,) = shown(failing("x", "timeout", "too slow"))
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(failed, tmp_path / "plot.png")
    with pytest.raises(ValueError, match="nonsense"):
        draw(row("x", seeds=1), tmp_path / "plot.nonsense")


def test_a_curve_that_became_nan_is_drawn_up_to_there():
    broken = learned(
        "x", curve=[{"step": 0, "loss": 4.0}, {"step": 100, "loss": 3.0}, {"step": 200, "loss": float("nan")}]
    )
    (one,) = shown([learned(), broken])
    assert figure(one).axes[0].get_lines()[-1].get_xdata()[-1] == 100
