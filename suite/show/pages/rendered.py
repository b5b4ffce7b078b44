"""Renders sections as HTML and as Markdown, by the templates beside this file.

Whatever a template prints goes through the filter of its form first (:mod:`suite.record.text`); a template's own marks
and what it has printed already do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from suite.record.text import code_in_markdown, in_html, in_markdown, printable
from suite.show.described import Figure, Section

TEMPLATES = Path(__file__).parent / "templates"
COLONS = {"l": ":--", "r": "--:", "c": ":-:"}


def as_html(section: Section | None, rank: int = 2) -> Markup:
    """Renders the section of a page, whose heading has that rank; nothing where there is none."""
    template = _environment(in_html).get_template("section.html.jinja")
    return Markup(template.render(section=section, rank=rank) if section else "")


def in_page(name: str, folder: Path = TEMPLATES) -> Template:
    """Returns the template of a page, ``name`` in ``folder``, which may take macros of those beside this file.

    Its macros, the attributes of its ``module``, take text, which they escape, and Markup, which they do not, and give
    Markup.
    """
    return _environment(in_html, folder).get_template(name)


def macros_beside(module: str) -> Any:
    """Returns the macros of the template that stands beside a module, whose file this is, and is called as it."""
    path = Path(module)
    return in_page(f"{path.stem}.html.jinja", path.parent).module


def as_markdown(section: Section, level: str = "##", pictures: Pictures | None = None) -> list[str]:
    """Renders the lines of a section whose heading is of a ``level``; figures become files of ``pictures``."""
    template = _environment(in_markdown).get_template("section.md.jinja")
    text = template.render(section=section, level=Markup(level), pictures=pictures or Pictures(""))
    return re.sub(r"\n{3,}", "\n\n", text.strip("\n")).split("\n")


class Pictures:
    """Holds figures by the names of their files, ``STEM-1.svg`` and so on."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.files: dict[str, str] = {}

    def name_of(self, figure: Figure) -> Markup:
        name = f"{self.stem}-{len(self.files) + 1}.svg"
        self.files[name] = f"{figure.svg}\n"
        return Markup(quote(name))


@cache
def _environment(escape: Callable[[str], str], folder: Path = TEMPLATES) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,  # so that what was printed once is known as such; what is new is escaped here
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(str(value))),
    )
    environment.globals["blank"] = Markup("\n\n")
    environment.filters["code"] = lambda name: Markup(code_in_markdown(name))
    environment.filters["colons"] = lambda align: Markup(COLONS[align])
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["drawn"] = lambda figure: Markup(figure.svg)
    environment.filters["one_line"] = lambda words: Markup(printable(" ".join(words.split())))
    return environment
