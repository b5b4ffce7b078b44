"""Renders sections as HTML and as Markdown, by the templates beside this file.

Whatever a template prints goes through the filter of its form first (:mod:`suite.record.text`); a template's own marks
and what it has printed already do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from suite.record.text import code_in_markdown, in_html, in_markdown, printable
from suite.show.described import Figure, Section

TEMPLATES = Path(__file__).parent / "templates"
COLONS = {"l": ":--", "r": "--:", "c": ":-:"}


def as_html(section: Section | None, rank: int = 2) -> str:
    """Renders the section of a page, whose heading has that rank; nothing where there is none."""
    template = _environment(in_html).get_template("section.html.jinja")
    return template.render(section=section, rank=rank) if section else ""


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
def _environment(escape: Callable[[str], str]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
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
