"""Hostile words in every form that they are shown in."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from suite.cli.shared import escape
from suite.record.text import code_in_markdown, in_csv, in_html, in_markdown, lines, printable

COMMANDS = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x08\x08",
    "\r",
    "\u202e",
    "\u2066",
    "\u200b",
    "\ufeff",
    "\u2028",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_commands_a_terminal_or_turns_text_is_written_out(command: str) -> None:
    for form in (printable, lines, in_html, in_markdown, code_in_markdown, escape):
        shown = form(f"a{command}b")
        assert all(each.isprintable() for each in shown)
        assert shown.startswith("a") and "b" in shown


@given(st.text())
def test_every_text_is_printable_in_every_form(text: str) -> None:
    assert printable(text).isprintable()
    assert all(each.isprintable() or each == "\n" for each in lines(text))
    assert all(each.isprintable() or each == "\xa0" for each in in_html(text))
    assert in_markdown(text).isprintable()


@given(st.text(st.sampled_from("a[]\\/#: \x1b\u202e=linkred")))
def test_a_terminal_prints_the_words_and_no_markup(text: str) -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=1000, soft_wrap=True, highlight=False, emoji=False, force_terminal=True)
    console.print(escape(text), end="")
    assert printed.getvalue().rstrip(" \\") == lines(text).rstrip(" \\")  # rich doubles a last backslash


@pytest.mark.parametrize(
    "words",
    [
        "write to mailto:a@evil.example now",
        "xmpp:a@evil.example/x",
        "a@evil.example",
        "<a@evil.example>",
        "@you",
        "http://evil.example",
        "www.evil.example",
        "[x](http://evil.example)",
        "![x](//evil.example/i.png)",
        "<img src=//evil.example>",
        "`a@evil.example`",
        "mailto\\:a\\@evil.example",
    ],
)
def test_markdown_has_no_link_and_no_image(words: str) -> None:
    """GitHub makes links of what is text after parsing: of an address wherever an @ stands between two words."""
    for token in MarkdownIt("commonmark", {"html": True}).parseInline(in_markdown(words))[0].children or []:
        assert token.type in ("text", "code_inline"), token
        assert token.type == "code_inline" or not re.search(r"\S@|@\S", token.content)


@pytest.mark.parametrize("formula", ["=HYPERLINK(1)", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1"])
def test_a_spreadsheet_takes_no_text_for_a_formula(formula: str) -> None:
    assert in_csv(formula) == f"'{formula}"
    assert in_csv("lion") == "lion"
