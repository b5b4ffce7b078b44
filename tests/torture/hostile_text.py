"""Hostile words in every text of a record, shown as HTML (in Chromium), Markdown, CSV and in a terminal: they stay
words."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from rich.console import Console

from suite.cli.shared import escape
from suite.guard.findings import Finding
from suite.guard.regression import markdown as summary
from suite.judge.rows import Row as BoardRow
from suite.record.text import FORMULA_STARTS
from suite.show import terminal
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from suite.topics.publish import export
from suite.topics.studies.lab import StudyTable
from suite.topics.studies.studies_on_board import Studied
from tests import factories
from tests.show.chromium import FOUND, MISSING, UNFOLDED, Chromium
from tests.show.samples import failing, shown, study
from tests.torture import Row, Scale, row, unavailable

CALL = "window.owned=1"
WORDS = [
    f"<script>{CALL}</script>",
    f"</script><script>{CALL}</script>",
    f"<img src=x onerror={CALL}>",
    f'"><svg onload={CALL}>',
    f"' onmouseover='{CALL}' x='",
    f"</title><script>{CALL}</script>",
    f"<!--<script>{CALL}//-->",
    f"]]><script>{CALL}</script>",
    f"<iframe srcdoc='<script>parent.{CALL}</script>'>",
    f"<a href='javascript:{CALL}'>x</a>",
    f"<style>*{{}}</style><script>{CALL}</script>",
    f"${{{CALL}}}",
    "$script",
    f"<math><mtext></form><form><mglyph><svg><script>{CALL}</script>",
    f"&lt;script&gt;{CALL}&lt;/script&gt;",
    f"\\u003cscript\\u003e{CALL}",
    f"<base href='//evil.example'><script>{CALL}</script>",
    "<plaintext>",
    "<textarea>",
    "[x](https://evil.example)",
    "![x](https://evil.example/i.png)",
    "<https://evil.example>",
    "https://evil.example",
    "www.evil.example",
    "mailto:a@evil.example",
    "xmpp:a@evil.example/b",
    "a@evil.example",
    "[x]: //evil.example",
    "| a | b |\n|---|---|",
    "\n# heading",
    "\n- [ ] box",
    "```\ncode\n```",
    "`a`b`",
    "a\\|b",
    "$$x$$",
    "<details>",
    "@you",
    "#1",
    '=HYPERLINK("http://evil.example")',
    "+1+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "＝1",
    'a,"b"\r\n=1',
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil.example\x07x",
    "\x9b2J",
    "\x08" * 9,
    "\r",
    "\x00",
    "\x7f",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\U000e0041",
    "[link=http://evil.example]x",
    "[bold]x[/bold]",
    "\\[red]x",
    ":smile:",
]


def attack(scale: Scale) -> Iterator[Row]:
    trials = scale.trials(len(WORDS))
    words = [WORDS[number * len(WORDS) // trials % len(WORDS)] for number in range(trials)]
    pages = {each: rows_with(each) for each in words}
    yield in_chromium(pages)
    yield row("hostile words in Markdown", Counter(in_markdown(each, pages[each]) for each in words))
    yield row("hostile words in a summary of check", Counter(in_summary(each) for each in words))
    yield row("hostile words in CSV", Counter(in_csv(each, pages[each]) for each in words))
    yield row("hostile words in a terminal", Counter(in_terminal(each, pages[each]) for each in words))


def rows_with(words: str) -> list[BoardRow]:
    """Rows whose every text is the words: of stack, data, model, machine, reason and probe."""
    machine = factories.MACHINE.model_copy(
        update={"name": words, "key": words, "facts": {"cpu": words, "cores": words}}
    )
    at = factories.conditions(data=words, model=words)
    lines = [*factories.evidence(f"s{words}", probes={words: 1.0}), *failing(f"b{words}", "crashed", words)]
    return shown(
        [
            each.model_copy(update={"machine": machine, "conditions": at.but(steps=each.conditions.steps)})
            for each in lines
        ]
    )


def in_chromium(pages: dict[str, Sequence[BoardRow]]) -> Row:
    test = "hostile words in HTML, opened in Chromium"
    if FOUND is None:
        return unavailable(test, MISSING)
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Chromium() as browser:
        page = Path(folder) / "board.html"
        for words, rows in pages.items():
            studied = Studied(study(tables=[StudyTable(words, (words,), [(words,)], words)]))
            text = html.render(Report(rows, [words], studies=[studied], unreadable=[words]))
            page.write_bytes(text.encode("utf-8", "surrogatepass"))
            browser.open(page)
            browser.run(UNFOLDED.replace("WITHIN", ""))
            ran = browser.run("'owned' in window")
            works = browser.run("!document.querySelector('form').hidden")  # the page's own script shows its controls
            if ran or len(browser.requests) > 1 or browser.console:
                outcomes[f"{words!r}: ran, asked for something, or was refused: {browser.console}"] += 1
            elif not works:
                outcomes[f"{words!r}: the page's own script did not run"] += 1
            else:
                outcomes["held" if _printable(text) else f"{words!r}: unprintable"] += 1
    return row(test, outcomes)


def _printable(text: str) -> bool:
    return all(each.isprintable() or each in "\n\xa0" for each in text)


def in_markdown(words: str, rows: Sequence[BoardRow]) -> str:
    studied = Studied(study(tables=[StudyTable(words, (words, "x"), [(words, 1.0)], words)]))
    page = markdown.render(Report(rows, [words], studies=[studied]))
    return _live(words, page)


def in_summary(words: str) -> str:
    return _live(words, summary([Finding(words, "exact", "failed", words)], words))


def _live(words: str, page: str) -> str:
    """What in a page of Markdown is more than words: links, images, HTML, tables of another width."""
    if not _printable(page):
        return f"{words!r}: unprintable"
    if re.search(r"://|\bwww\.", re.sub("`[^`]*`", "", page)):
        return f"{words!r}: a link on GitHub"
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    for token in (inner for outer in parser.parse(page) for inner in (outer, *(outer.children or []))):
        if token.type in ("html_block", "html_inline", "link_open", "image", "fence"):
            return f"{words!r}: {token.type}"
        if token.type == "text" and re.search(r"\S@\S", token.content):
            return f"{words!r}: an address, of which GitHub makes a link"
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        if len({len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines()}) > 1:
            return f"{words!r}: a table of another width"
    return "held"


def in_csv(words: str, rows: Sequence[BoardRow]) -> str:
    for name in export.TABLES:
        text = export.exported(rows, "csv", name).decode("utf-8", "surrogatepass")
        if wrong := _formula(text):
            return f"{words!r}: {wrong}"
    table = StudyTable(words, (words, "x"), [(words, 1.0)], words)
    return f"{words!r}: {wrong}" if (wrong := _formula(table.as_csv())) else "held"


def _formula(text: str) -> str:
    lines = list(csv.reader(io.StringIO(text, newline="")))
    if len({len(line) for line in lines}) > 1:
        return "a table of another width"
    cells = [cell for line in lines for cell in line if not re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell)]
    return "a formula" if any(cell.startswith(FORMULA_STARTS) for cell in cells) else ""


def in_terminal(words: str, rows: Sequence[BoardRow]) -> str:
    for each in [words, *map(terminal.summary, rows)]:
        printed = io.StringIO()
        Console(file=printed, soft_wrap=True, highlight=False, emoji=False, force_terminal=True).print(escape(each))
        if not all(one.isprintable() or one == "\n" for one in printed.getvalue()):
            return f"{words!r}: a command for the terminal"
    return "held"
