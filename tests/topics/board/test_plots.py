import re
from xml.etree import ElementTree

import numpy as np
import pytest

from suite.show.pages.board import leaning
from suite.show.pages.labels import Labels, point_box
from suite.show.pictures.axes import Axis, even_ticks, log_ticks
from suite.show.pictures.charts import KINDS, CurveFrame, curves, forest, learning_curves, loss_range, pareto, ruler
from suite.show.pictures.drawing import Dot, Line, MarkGroup, Words, save
from suite.topics.board.plots import PLOTS, figure, of_boards
from suite.topics.board.report import Report
from tests.factories import evidence, learned, row
from tests.show.samples import failing, lean, on, shown

SVG = "{http://www.w3.org/2000/svg}"


def flat(marks):
    for each in marks:
        yield from flat(each.marks) if isinstance(each, MarkGroup) else [each]


def of_kind(drawing, kind):
    return [each for each in flat(drawing.marks) if each.kind == kind]


def said(drawing):
    return [each.words for each in flat(drawing.marks) if isinstance(each, Words)]


def test_the_figure_shows_what_was_learned_what_every_round_cost_and_where_it_ended():
    one = row("x", pace_s=lambda progress: 0.01 + 0.02 * progress, windows=5, final=1.9, steps=100)
    drawn = figure(one)
    rounds = sum(len(each.step_log_ratios) for each in one.known.timed)
    assert sum(isinstance(each, Dot) and each.r == 1.8 for each in flat(drawn.marks)) == rounds
    assert len(of_kind(drawn, "each reference")) == len(of_kind(drawn, "each technique")) == len(one.seeds)
    words = said(drawn)
    assert {"validation loss", "progress of the run", "step time over that of baseline", "final test loss"} <= {*words}
    assert any(each.startswith("x on gpt nano") for each in words)


def test_only_the_panels_of_what_is_known_are_drawn():
    assert "progress of the run" not in said(figure(row("x", replicates=0)))
    assert "validation loss" not in said(figure(row("x", seeds=0, ruler=False)))


@pytest.mark.parametrize(("final", "tip"), [(1.2, 10), (3.5, -10)])
def test_what_lies_beyond_the_curve_is_an_arrow_at_its_end(final, tip):
    drawn = ruler([row("x", final=final)])
    (arrow,) = [each for each in flat(drawn.marks) if isinstance(each, Line) and each.closed and "dot" in each.kind]
    (x0, _), (x1, _), _ = arrow.points
    assert x1 - x0 == tip and (x0 > drawn.width / 2) == (tip > 0)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_in_the_format_of_the_suffix_and_twice_the_same(tmp_path, suffix):
    one = row("$x_{$", seeds=1)  # a name is text, not a formula
    for name in ("one", "two"):
        save(figure(one), tmp_path / name / f"plot.{suffix}")
    content = (tmp_path / "one" / f"plot.{suffix}").read_bytes()
    assert content[:4] in (b"\x89PNG", b"<svg", b"%PDF")
    assert content == (tmp_path / "two" / f"plot.{suffix}").read_bytes()


def test_without_numbers_or_with_an_unknown_suffix_it_says_so(tmp_path):
    (failed,) = shown(failing("x", "timeout", "too slow"))
    with pytest.raises(ValueError, match="nothing to draw"):
        figure(failed)
    with pytest.raises(ValueError, match=r"\.nonsense: a picture's suffix says its format: \.svg, \.pdf, \.png"):
        save(figure(row("x", seeds=1)), tmp_path / "plot.nonsense")
    assert not list(tmp_path.iterdir())


def test_a_curve_that_became_nan_is_drawn_up_to_there():
    broken = learned(
        "x", curve=[{"step": 0, "loss": 4.0}, {"step": 100, "loss": 3.0}, {"step": 200, "loss": float("nan")}]
    )
    (one,) = shown([learned(), broken])
    assert learning_curves(one)[1].mean[-1, 0] == 100
    reference, technique = (of_kind(curves(one), kind)[0] for kind in ("mean reference dashed", "mean technique"))
    assert technique.points[-1][0] < reference.points[-1][0]


# axes and names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.9, 1.2, [0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2]),
        (0.4, 4.2, [0.5, 1.0, 2.0, 4.0]),
        (0.05, 40, [0.1, 1.0, 10.0]),
        (1.9, 4.1, [2.0, 3.0, 4.0]),
    ],
)
def test_ticks_are_round_and_few(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_even_ticks_hold_what_lies_between_and_an_axis_clips_what_does_not():
    assert even_ticks(0, 600) == [0, 100, 200, 300, 400, 500, 600]
    assert even_ticks(1.0, 1.0) == [1.0]
    axis = Axis("x", 0.5, 2.0)
    assert (axis.share(1.0), axis.share(9.0), axis.share(0.0)) == (pytest.approx(0.5), 1.0, 0.0)


def boxes(marks):
    """Of names as they were placed: left, top, right, bottom."""
    names = [each for each in flat(marks) if isinstance(each, Words) and each.kind == "name"]
    return [(each.x, each.y - 10, each.x + 6.9 * len(each.words), each.y + 3) for each in names]


def apart(one, other):
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_names_in_a_crowd_never_lie_over_each_other_nor_over_points():
    random = np.random.default_rng(0)
    spots = [(float(x), float(y)) for x, y in random.normal((400, 240), (90, 50), (80, 2))]
    labels = Labels((0, 0, 800, 480), [point_box(*spot) for spot in spots])
    marks = [each for number, spot in enumerate(spots) for each in labels.place(*spot, f"technique_{number}")]
    names, points = boxes(marks), [point_box(*spot) for spot in spots]
    assert len(names) > 30
    assert all(apart(one, other) for at, one in enumerate(names) for other in [*names[:at], *points])
    leads = [each for each in marks if isinstance(each, Line)]
    assert leads, "a name that stands off has a line to its point"
    on_line = [
        (x0 + t * (x1 - x0), y0 + t * (y1 - y0))
        for (x0, y0), (x1, y1) in (each.points for each in leads)
        for t in np.linspace(0, 1, 9)
    ]
    assert not any(b[0] < x < b[2] and b[1] < y < b[3] for x, y in on_line for b in names)


@pytest.mark.parametrize("plot", [pareto, ruler])
def test_hundreds_of_techniques_never_write_over_each_other(plot):
    one = row("x")
    rows = [type(one)(**vars(one) | {"stack": f"name_{number}"}) for number in range(200)]
    names = boxes(plot(rows).marks)
    assert len(names) > 3
    assert all(apart(one, other) for at, one in enumerate(names) for other in names[:at])


# the plots of boards ------------------------------------------------------------------------------------------------


def several():
    lines = [*lean("fast", 2**20, pace_s=0.01), *lean("slow", 2**23, pace_s=0.04), *evidence("far", final=1.3)]
    lines += lean("same", 2**22)
    return shown(lines, on(lines, baseline="vit"), failing("broken", "crashed", "no reason"))


def test_intervals_are_sorted_by_effect_and_coloured_where_they_exclude_1():
    rows = [each for each in several() if each.conditions.baseline == "gpt"]
    drawn = forest(rows)
    names = [each.words for each in flat(drawn.marks) if isinstance(each, Words) and each.kind == "name"]
    assert names == ["far", "fast", "same", "slow"]
    kinds = [each.kind for each in flat(drawn.marks) if isinstance(each, Line) and each.kind.startswith("span")]
    sure = {row.stack: KINDS[leaning(row.value("time_to_quality"))] for row in rows if not row.failed}
    assert kinds == [f"span {sure[name]}" for name in names if name != "far"] and sure["fast"] == "better"
    assert forest(shown(failing("x", "timeout", "too slow"))) is None


def test_time_against_memory_has_units_and_says_what_1_is():
    words = said(pareto(several()))
    assert any(re.search(r"^training time over the reference's, 1 = [\d.]+ s$", each) for each in words)
    assert any(re.search(r"^peak tensor bytes over the reference's, 1 = [\d.]+ MB$", each) for each in words)


def test_learning_curves_of_a_board_share_their_range():
    rows = [row("x"), row("y", final=1.2)]
    losses = loss_range(rows)
    assert losses[0] == pytest.approx(1.2, rel=0.05)
    shared = CurveFrame.of(rows)
    ticks = [[each for each in said(curves(one, shared)) if re.fullmatch(r"[\d.]+", each)] for one in rows]
    assert ticks[0] == ticks[1]


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_of_boards_is_an_svg_that_stands_alone(plot):
    drawn = ElementTree.fromstring(of_boards(Report(several()), plot).file())
    words = [each.text for each in drawn.iter(f"{SVG}text")]
    assert sum(each.startswith(("gpt ·", "vit ·")) for each in words) == 2
    assert drawn.find(f"{SVG}style") is not None and drawn.find(f".//{SVG}a") is None
    with pytest.raises(ValueError, match="none of these rows"):
        of_boards(Report(shown(failing("x", "timeout", "too slow"))), plot)
