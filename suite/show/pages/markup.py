"""Has the repeated fragments of the page, and anchors that are not taken."""

from __future__ import annotations

from typing import Any

from suite.show.pages.rendered import in_page

fragments: Any = in_page("fragments.html.jinja").module
"""The macros of that template: ``link``, ``code``, ``table`` and others."""


def free_anchor(name: str, taken: set[str]) -> str:
    """Returns the name, numbered where it is taken; adds it to ``taken``."""
    number = 1
    while (anchor := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    taken.add(anchor)
    return anchor
