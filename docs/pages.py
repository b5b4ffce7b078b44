"""Hooks of MkDocs: every page that has its source elsewhere in the project is made here, when the site is built.

The README, CONTRIBUTING and the boards are taken as they are; techniques come from their cards and the committed
records, baselines from their classes and ``results/references.json``, commands from the command line itself.
Hand-written, below ``docs/``, is only what nothing else says: which modules a method's page is made of.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerator_page
import baseline_pages
import command_pages
import step_time_page
import technique_pages
import yaml

from suite.entries.catalogue import catalogue
from suite.show.pictures.drawing import COLOURS, charts_css
from suite.topics.board import html, which_page
from suite.topics.board.goals import tables
from suite.topics.board.markdown import code, escape
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing
from suite.topics.models import models_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "leaderboard.md")
SOURCE = re.compile(r"\]\((?!https?:)([^)#]+\.(?:py|cff|yml))\)")  # a link to a file that is no page
ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//[^>]*>'
)
PROSE = re.compile(r"\*{0,2}[\w`]")  # how a paragraph begins, and no heading, table, picture or fence
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
METHODS = {
    "Kinds of evidence": "evidence",
    "The ruler": "ruler",
    "Anyone's runs": "judge",
    "Exact counters": "counters",
    "Energy": "energy",
    "Statistics": "statistics",
    "Claims and verdicts": "claims",
    "Mutants": "mutants",
    "Attachment": "attachment",
    "Stacks": "stacks",
    "Schedules": "schedules",
    "Changes over time": "history",
    "Guard": "guard",
    "Many tries": "tries",
    "Kernels": "kernels",
}
API = {
    "From Python": "index",
    "The ruler alone": "ruler",
    "Optimizers": "optim",
    "Layers": "layers",
    "Gradient communication": "communication",
    "The contract of a technique": "contract",
}


@cache
def report() -> Report:
    """What the committed records say."""
    return Report.read(ROOT / "results")


def written() -> dict[str, str]:
    """Pages that the project has already, by their path in the site, which is that in the project."""
    boards = sorted((ROOT / "results" / "boards").glob("*.md"))
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in [*map(ROOT.joinpath, PAGES), *boards]
    }
    sources = {target for text in texts.values() for target in SOURCE.findall(text)}
    pages = {name: SOURCE.sub(r"](\1.md)", text) for name, text in texts.items()}
    return pages | {f"{name}.md": _source(name) for name in sorted(sources)}


def _source(name: str) -> str:
    language = "python" if name.endswith(".py") else "yaml"
    return f"# {Path(name).name}\n\n`{name}`\n\n```{language}\n{(ROOT / name).read_text('utf-8')}```\n"


def generated() -> dict[str, str]:
    """Pages made from cards, records, classes and commands, by their path in the site."""
    of_goals = tables(Standing.of(report()))
    pages = {"techniques/index.md": technique_pages.index(of_goals)}
    pages |= {
        f"techniques/{id}.md": technique_pages.page(entry, report(), of_goals) for id, entry in catalogue().items()
    }
    pages |= {f"baselines/{name}.md": text for name, text in baseline_pages.pages(report()).items()}
    pages |= {"methods/index.md": methods()}
    pages |= {f"api/{module}.md": api(module) for module in ("optim", "layers", "communication")}
    accelerators = accelerator_page.page([studied.study for studied in report().studies])
    return pages | {
        "command-reference.md": command_pages.page(),
        "accelerators.md": accelerators,
        "step-times.md": step_time_page.page(),
    }


def api(module: str) -> str:
    """A page of all that a module of the library hands on."""
    from importlib import import_module

    names = import_module(f"leantrain.{module}").__all__
    parts = [f"# leantrain.{module}", f"::: leantrain.{module}"]
    parts += [
        f"::: leantrain.{module}.{name}\n    options:\n      show_root_heading: true\n      show_root_toc_entry: true"
        for name in names
    ]
    return "\n\n".join(parts) + "\n"


def methods() -> str:
    """The methods' pages, each with the first sentence that it says."""
    lines = ["# Methods", "", "How a number comes about, from what is run to what a verdict says.", ""]
    for title, name in METHODS.items():
        _, first, *_ = (ROOT / "docs/methods" / f"{name}.md").read_text("utf-8").split("\n\n")
        sentence, *_ = re.split(r"(?<=[.?])\s", first)
        lines.append(f"- [{title}]({name}.md): {sentence}")
    return "\n".join(lines) + "\n"


def action() -> str:
    """The Action's inputs and outputs."""
    declared = yaml.safe_load((ROOT / "action/action.yml").read_text("utf-8"))
    lines = ["", "## Inputs", "", "| | | default |", "|---|---|---|"]
    for name, spec in declared["inputs"].items():
        lines.append(f"| `{name}` | {escape(spec['description'])} | {code(str(spec['default'])) or ''} |")
    lines += ["", "## Outputs", "", "| | |", "|---|---|"]
    lines += [f"| `{name}` | {escape(output['description'])} |" for name, output in declared["outputs"].items()]
    return "\n".join(lines) + "\n"


def charts() -> str:
    """How charts look, in the site's light and its dark."""
    light, dark = ("; ".join(f"--{name}: {pair[column]}" for name, pair in COLOURS.items()) for column in (0, 1))
    page = "--page: var(--md-default-bg-color); --text: var(--md-default-fg-color)"
    schemes = f':root {{ {light}; {page} }}\n[data-md-color-scheme="slate"] {{ {dark}; {page} }}\n'
    return f"{schemes}{charts_css()}"


def nav() -> list[Any]:
    """The site's contents."""
    by_category: dict[str, list[Any]] = {}
    for id, entry in catalogue().items():
        by_category.setdefault(entry.card.category.replace("_", " "), []).append(
            {entry.card.name: f"techniques/{id}.md"}
        )
    boards = [{path.stem: f"results/boards/{path.name}"} for path in sorted((ROOT / "results/boards").glob("*.md"))]
    of_models = [{"Techniques on models, to filter": "models.html"}] if report().models else []
    return [
        {
            "leantrain": [
                "README.md",
                {"Which should I take?": "which.html"},
                {"Use it in your loop": "use.md"},
                {"In your trainer": "trainers.md"},
                *_of("api", API),
                {"What you can ask": "commands.md"},
                {"How to read the board": "reading.md"},
                {"Commands": "command-reference.md"},
                {"Guard in CI": "action.md"},
                {"For agents": "agents.md"},
            ]
        },
        {"Leaderboard": ["leaderboard.md", {"All of it, to sort and filter": "board.html"}, *boards, *of_models]},
        {"Techniques": ["techniques/index.md", *({title: pages} for title, pages in sorted(by_category.items()))]},
        {"Baselines": ["baselines/index.md", *(f"baselines/{name}.md" for name in baseline_pages.names())]},
        {
            "Methods": [
                "methods/index.md",
                *_of("methods", METHODS),
                {"Modelled step times": "step-times.md"},
                {"Accelerators of papers": "accelerators.md"},
            ]
        },
        {"Contributing": ["CONTRIBUTING.md"]},
    ]


def llms(pages: Mapping[str, str]) -> str:
    """The contents for language models (llmstxt.org): every page of the site with its first sentence.

    ``pages``: the text of those that are made, by path.
    """
    described = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8").partition("\ntheme:")[0])["site_description"]
    lines = ["# leantrain", "", f"> {described}: measured, with intervals.", ""]
    lines += ["Commands print JSON with --json. `leantrain mcp` serves them to agents as tools.", ""]
    for section in nav():
        ((title, below),) = section.items()
        lines += [f"## {title}", "", *(_line(name, path, pages) for name, path in _leaves(below)), ""]
    return "\n".join(lines)


def _leaves(below: Any) -> Iterator[tuple[str, str]]:
    """The pages below an item of the contents, each with its title, empty where the page has it."""
    if isinstance(below, str):
        yield "", below
    elif isinstance(below, list):
        yield from (leaf for each in below for leaf in _leaves(each))
    else:
        for title, inner in below.items():
            yield from ((name or title, path) for name, path in _leaves(inner))


def _line(title: str, path: str, pages: Mapping[str, str]) -> str:
    address = path.removesuffix("README.md") + "index.html" if path.endswith("README.md") else path
    if not path.endswith(".md"):
        return f"- [{title}]({path})"
    text = pages.get(path) or (ROOT / "docs" / path).read_text("utf-8")
    head, *blocks = text.split("\n\n")
    prose = next((" ".join(block.split()) for block in blocks if PROSE.match(block)), "")
    sentence = re.split(r"(?<=[.?])\s", LINK.sub(r"\1", prose).replace("**", ""))[0].rstrip(":")
    return f"- [{title or head.lstrip('# ')}]({re.sub('[.]md$', '.html', address)}): {sentence}".removesuffix(": ")


def _of(folder: str, titles: Mapping[str, str]) -> list[dict[str, str]]:
    return [{title: f"{folder}/{name}.md"} for title, name in titles.items()]


# hooks ---------------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = nav()
    config.watch.append(str(ROOT / "techniques"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, content in _contents():
        files.append(_file(config, name, content))
    return files


def _contents() -> Iterator[tuple[str, str]]:
    pages = written() | generated()
    yield from pages.items()
    yield "llms.txt", llms(pages)
    yield "board.html", html.render(report())
    yield "which.html", which_page.render(Standing.of(report()))
    if models := report().models:
        yield "models.html", models_page.render(models)
    for path in sorted((ROOT / "results/boards").glob("*.svg")):
        yield f"results/boards/{path.name}", path.read_text("utf-8")
    yield from step_time_page.pictures().items()
    yield "charts.css", charts()


def _file(config: MkDocsConfig, name: str, content: str) -> Any:
    from mkdocs.structure.files import File

    return File.generated(config, name, content=content)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return markdown + action() if page.file.src_uri == "action.md" else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warns, and so ends a strict build, where a page would load something from elsewhere."""
    if loaded := ELSEWHERE.search(output):
        logging.getLogger("mkdocs.hooks").warning("%s loads %s", page.file.src_uri, loaded[0])
    return output
