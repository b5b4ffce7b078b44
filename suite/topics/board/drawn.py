"""Has the templates of the HTML page, which stand in the folder ``templates`` beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Template

from suite.show.pages.rendered import in_page

TEMPLATES = Path(__file__).parent / "templates"


def template(name: str) -> Template:
    """Returns one of the page's templates, ``name`` without its suffix."""
    return in_page(f"{name}.html.jinja", TEMPLATES)


def macros(name: str) -> Any:
    """Returns what one draws, as functions that take text and Markup and give Markup."""
    return template(name).module
