"""Draws the plots of studies: a study's own module draws them, with torch and matplotlib loaded; a results folder keeps
them.

A kept plot stands beside the study's tables, and says of which tables and of which code it is: the file of the module
that draws it, without what that uses of others. One of others is drawn again by whoever shows it. An SVG may come from
anybody, so one with other elements than those of a plain drawing is refused, and other attributes are left out.

``python -m suite.topics.studies.study_plots [RESULTS]`` draws and keeps what a results folder lacks.
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

from suite.entries.card import CardError
from suite.entries.catalogue import catalogue
from suite.entries.code import read_source
from suite.judge.study_tables import Study, path_of, read_studies
from suite.record.files import read_plain, replacing

MOST_ROWS = 500  # of a table, on the page; a study with longer ones is not drawn either
SVG = "http://www.w3.org/2000/svg"
OF = "data-of"  # what the kept plot is of
ELEMENTS = {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text", "tspan"}
ATTRIBUTES = {
    "id",
    "d",
    "style",
    "transform",
    "x",
    "y",
    "width",
    "height",
    "href",
    "clip-path",
    "viewBox",
    "version",
    "space",
    "fill",
    "stroke",
    OF,
}
PAPER = {"#000000": "currentColor", "#ffffff": "var(--page)"}  # what matplotlib's colours are on this page


# kept beside the tables ----------------------------------------------------------------------------------------------


def stored_plot(study: Study, records: Path) -> bytes:
    """Reads the plot that the results folder keeps of these tables; empty where it has none, or one of others."""
    try:
        svg = read_plain(_path(study, records))
        current = b"<!" not in svg and ElementTree.fromstring(svg).get(OF) == _of(study)
    except (OSError, ValueError, ElementTree.ParseError):
        return b""
    return svg if current else b""


def keep(study: Study, records: Path) -> Path | None:
    """Draws the study and writes that beside its tables; None where it has no plot. Raises as :func:`drawn`."""
    svg = drawn(study)
    if not svg:
        return None
    root = _plain(svg)
    box = root.attrib["viewBox"]
    width, height = box.split()[2:]
    root.attrib = {"xmlns": SVG, "viewBox": box, "width": f"{width}pt", "height": f"{height}pt", OF: _of(study)}
    path = _path(study, records)
    with replacing(path) as partial:
        partial.write_bytes(ElementTree.tostring(root, "utf-8") + b"\n")
    return path


def _path(study: Study, records: Path) -> Path:
    return path_of(study, records).with_suffix(".svg")


def _of(study: Study) -> str:
    """Computes a hash of the tables and of what the file that draws them does, whatever it calls its variables."""
    source = _source(study)
    code = "\n".join(statement.text for statement in read_source(source).statements) if source else ""
    return hashlib.sha256(f"{study.model_dump_json(include={'tables'})}\0{code}".encode()).hexdigest()[:32]


def _source(study: Study) -> Path | None:
    """Finds the file of the study's own module, or of the one that its card names; None where neither is installed."""
    try:
        entry = catalogue()[study.technique]
        shared = entry.card.study
    except (LookupError, CardError):
        return None
    own = entry.folder / "study.py"
    if own.is_file():
        return own
    return Path(__file__).with_name(f"{shared.name}.py") if shared else None


# drawn ---------------------------------------------------------------------------------------------------------------


def drawn(study: Study) -> bytes:
    """Returns the plot as matplotlib writes it. Empty where the module draws none.

    Raises ValueError for a technique that is not installed and for what does not belong on the page, and whatever the
    module raises.
    """
    from suite.topics.studies.study import (
        study_of,  # a study's module loads torch, which a page of kept plots does not need
    )

    if study.technique not in catalogue():
        raise ValueError(f"{study.technique} is not installed")
    module = study_of(catalogue()[study.technique])
    if not hasattr(module, "plot"):
        return b""
    if any(len(table.rows) > MOST_ROWS for table in study.tables):
        raise ValueError(f"a table has more than {MOST_ROWS} rows")
    import matplotlib

    svg = BytesIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": study.technique, "text.usetex": False}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of axes without data
        module.plot(study.tables).savefig(svg, format="svg", facecolor="none", metadata={"Date": None})
    return svg.getvalue()


# on the page ---------------------------------------------------------------------------------------------------------


def element(study: Study, anchor: str, label: str, plot: bytes = b"") -> str:
    """Returns the plot as an element of a page, with ids of its own, in the page's colours; ``plot`` is the one that
    was kept. Empty where the study has none. Raises as :func:`drawn` and :func:`inline`."""
    source = _source(study)
    if not plot and source and "plot" not in read_source(source).bindings:
        return ""  # without loading the module
    svg = plot or drawn(study)
    return inline(svg, anchor, label) if svg else ""


def inline(svg: bytes, anchor: str, label: str) -> str:
    """Turns an SVG file into an element of a page. Raises ValueError where it has more than a plain drawing, or refers
    to anything outside of it."""
    root = _plain(svg)
    for node in root.iter():
        node.attrib = {name: _ours(name, value, anchor) for name, value in node.attrib.items()}
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib = {
        "class": "study",
        "role": "img",
        "aria-label": label,
        "viewBox": root.attrib["viewBox"],
        "width": f"{width}pt",
    }
    return ElementTree.tostring(root, "unicode")


def _plain(svg: bytes) -> ElementTree.Element:
    """Returns the drawing without namespaces, style sheets and what describes it, two digits behind a point. Raises
    ValueError where it has anything else than :data:`ELEMENTS` and :data:`ATTRIBUTES`, or a link."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        parent.tag = _local(parent.tag)
        if parent.tag not in ELEMENTS:
            raise ValueError("it has an image or a link, or more than a plain drawing, which this page does not")
        parent[:] = [child for child in parent if _local(child.tag) not in ("metadata", "style")]
        attributes = {_local(name): value for name, value in parent.attrib.items()}
        parent.attrib = {
            name: re.sub(r"-?\d+\.\d{3,}", _two_digits, value)
            for name, value in attributes.items()
            if name in ATTRIBUTES
        }
        if any(re.search(r"url\((?!#)", value) for value in parent.attrib.values()):
            raise ValueError("it refers to something outside of it, which this page does not")
        if not parent.get("href", "#").startswith("#"):
            raise ValueError("it has an image or a link, which this page does not")
    return root


def _two_digits(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _ours(name: str, value: str, anchor: str) -> str:
    """Returns an attribute's value with ids that no other figure has and colours that a dark page can show."""
    if name == "id":
        return f"{anchor}--{value}"
    if name == "href":
        return f"#{anchor}--{value[1:]}"
    if name in ("style", "fill", "stroke"):
        value = re.sub("|".join(PAPER), lambda match: PAPER[match[0]], value)
    return re.sub(r"url\(#", f"url(#{anchor}--", value)


def main(records: Path) -> None:
    studies, _ = read_studies(records)
    for study in studies:
        if not stored_plot(study, records) and (path := keep(study, records)):
            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
