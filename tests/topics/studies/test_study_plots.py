"""The plots that a results folder keeps of its studies: current or drawn anew, and plain whatever the file holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from suite.entries.catalogue import catalogue
from suite.judge.study_tables import read_studies
from suite.topics.board import html
from suite.topics.board.report import Report
from suite.topics.studies import study_plots
from suite.topics.studies.lab import StudyTable
from suite.topics.studies.studies_on_board import Studied
from suite.topics.studies.study import study_of
from tests.show.samples import study, whole
from tests.topics.board.test_html import Page
from tests.topics.studies.test_studies_on_board import labelled

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.topics.studies.study.study_of", lambda entry: SimpleNamespace(plot=labelled))


@pytest.mark.usefixtures("drawing")
def test_a_kept_plot_is_shown_as_it_would_be_drawn_without_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study()
    fresh = study_plots.element(made, "a", "b")
    path = study_plots.keep(made, tmp_path)
    assert path and path.suffix == ".svg" and path.parent.name == "studies"
    monkeypatch.setattr("suite.topics.studies.study.study_of", None)
    assert study_plots.element(made, "a", "b", study_plots.stored_plot(made, tmp_path)) == fresh
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg", "a picture by itself, too"


@pytest.mark.usefixtures("drawing")
def test_a_plot_of_other_tables_or_damaged_is_not_shown(tmp_path: Path) -> None:
    assert study_plots.stored_plot(study(), tmp_path) == b""
    path = study_plots.keep(study(), tmp_path)
    assert path
    assert study_plots.stored_plot(study(), tmp_path)
    assert not study_plots.stored_plot(study(tables=[StudyTable("other", ("x",), [(1,)])]), tmp_path)
    drawn = path.read_bytes()
    for damaged in (drawn[:-20], b"", b"<!DOCTYPE svg [<!ENTITY a 'b'>]>" + drawn):
        path.write_bytes(damaged)
        assert not study_plots.stored_plot(study(), tmp_path)


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<image href='data:image/png;base64,AA'/>",
        "<foreignObject/>",
        "<a href='#x'/>",
        "<use href='https://example.org/#x'/>",
        "<rect style='fill: url(https://example.org)'/>",
        "<animate/>",
    ],
)
@pytest.mark.usefixtures("drawing")
def test_a_drawing_that_is_more_than_plain_is_a_sentence(inside: str, tmp_path: Path) -> None:
    path = study_plots.keep(study(), tmp_path)
    assert path
    path.write_text(path.read_text("utf-8").replace("</svg>", f"{inside}</svg>"), "utf-8")
    plot = study_plots.stored_plot(study(), tmp_path)
    page = Page(whole(html.render(Report(studies=[Studied(study(), plot=plot)]))))
    assert plot and not page.having("svg") and any(each.startswith("No plot: it ") for each in page.words)


@pytest.mark.usefixtures("drawing")
def test_attributes_that_do_something_are_left_out(tmp_path: Path) -> None:
    path = study_plots.keep(study(), tmp_path)
    assert path
    path.write_text(path.read_text("utf-8").replace("<g ", "<g onclick='alert(1)' class='x' ", 1), "utf-8")
    drawn = study_plots.element(study(), "a", "b", study_plots.stored_plot(study(), tmp_path))
    assert drawn and "onclick" not in drawn and drawn.count("class=") == 1


def test_the_committed_plots_are_of_the_committed_tables() -> None:
    """A study whose module draws nothing is tables alone."""
    studies, _ = read_studies(RESULTS)
    drawn = [each for each in studies if hasattr(study_of(catalogue()[each.technique]), "plot")]
    missing = [each.technique for each in drawn if not study_plots.stored_plot(each, RESULTS)]
    assert len(drawn) > 10 and not missing, "draw them: python -m suite.topics.studies.study_plots"


def test_a_page_of_records_loads_no_torch_and_draws_nothing(tmp_path: Path) -> None:
    """With everything that the committed results have, but for the many records."""
    for path in [*RESULTS.glob("*.json"), *RESULTS.glob("*/studies/rotor-*")]:
        copy = tmp_path / path.relative_to(RESULTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    script = (
        "import sys; from pathlib import Path; from suite.topics.board import html, markdown; "
        "from suite.topics.board.report import Report; report = Report.read(Path(sys.argv[1])); "
        "page = html.render(report) + markdown.render(report); assert 'Studies' in page; "
        "sys.exit(', '.join({'torch', 'transformers', 'matplotlib'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
