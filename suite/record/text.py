"""Prepares text from elsewhere, as a terminal, Markdown, HTML and CSV may show it: one filter, and what each form adds.

Records, reasons and names may come from anybody. :func:`printable` writes out what Unicode does not call printable, in
every form: control characters and with them a terminal's escape sequences, marks that turn the direction of text or
are invisible, separators of lines, lone surrogates.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager

PLAIN = re.compile(r"[\w.:=,+/ -]*")  # nothing in here ends a code span or a table cell, or is a link
ADDRESS = re.compile(r"[\w.:=,+/@-]+")  # of a word with an @: what a code span can hold
LONGEST_REASON = 240  # characters of another library's own words
FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")  # OWASP, "CSV Injection"; the wide forms count in some locales


def printable(text: str) -> str:
    """Writes text in one line, as a message may quote it: what is not printable is written out."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def lines(text: str) -> str:
    """Returns text for a terminal: its lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def in_html(words: str) -> str:
    """Returns text for an element or an attribute; lines and tabs become spaces."""
    if words.isprintable():  # nearly all: it has no line, no tab and no such space
        return html.escape(words)
    return html.escape("\xa0".join(map(printable, re.sub(r"[\t\r\n]", " ", words).split("\xa0"))))


def in_markdown(words: str) -> str:
    """Writes text for Markdown as text: no markup, no HTML, no link, no second line."""
    return " ".join(map(_word_in_markdown, words.split()))


def _word_in_markdown(word: str) -> str:
    if "@" in word and ADDRESS.fullmatch(word):
        return f"`{word}`"  # GitHub makes links of addresses, mailto: and xmpp: after it has read escapes and entities
    entities = printable(word).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = re.sub(r"([\\`*_{}\[\]|~$#])", r"\\\1", entities).replace("@", " @ ")
    return marked.replace("://", "&#58;//").replace("www.", "www&#46;")


def code_in_markdown(name: str) -> str:
    """Writes a name in code font, or as text where it holds what code font cannot."""
    return f"`{name}`" if name.strip() and PLAIN.fullmatch(name) else in_markdown(name)


def in_csv(text: str) -> str:
    """Returns ``text``, with an apostrophe in front where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


@contextmanager
def understood(folder: object, what: str) -> Iterator[None]:
    """Guards another library's look at ``folder``: raises ValueError that it cannot do ``what``, with its reason.

    Of a library's errors none is to be expected: one configuration makes it raise TypeError, another KeyError.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"--model {folder}: {what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Returns an error's own words in one line, with its kind, as far as they are short."""
    words = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    kind = type(error).__name__
    short = words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON].rsplit(' ', 1)[0]} ..."
    return printable(short if isinstance(error, OSError) else f"{kind}: {short}" if short else kind)
