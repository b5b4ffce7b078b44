"""Every snippet of the README, of CONTRIBUTING and of the site: shell lines parse, Python runs at pico, YAML is right.

The pages that the site makes are made here, too, without MkDocs; ``make docs`` builds them, strictly.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
import yaml
from torch.nn import functional

import leantrain
from suite.cli import app
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.record.store import Store
from suite.topics.board.goals import tables
from suite.topics.board.standing import Standing
from suite.topics.references import learned_references as references

ROOT = Path(__file__).parent.parent
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( {0,3})```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)  # sources, deeper, are no snippets;
# nor are files, whose fence has a title: tests/test_day.py writes those
PART_OF = {"CONTRIBUTING.md": ("suite.record.schema",)}  # the modules that its blocks go into


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str


def snippets(page: str, text: str) -> Iterator[Snippet]:
    for indent, language, block in FENCE.findall(text):
        yield Snippet(page, language, re.sub(f"^{indent}", "", block, flags=re.MULTILINE))


HANDWRITTEN = [
    each for path in WRITTEN for each in snippets(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
]


@cache
def site() -> Mapping[str, str]:
    """The pages that the site makes, by path."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        pages = importlib.import_module("pages")
    finally:
        sys.path.pop(0)
    made = pages.written() | pages.generated()
    return made | {"action.md": pages.action(), "llms.txt": pages.llms(made)}


@cache
def generated() -> list[Snippet]:
    return [each for page, text in site().items() if page not in PART_OF for each in snippets(page, text)]


# shell ---------------------------------------------------------------------------------------------------------------


def lines(among: list[Snippet]) -> list[str]:
    return list(
        dict.fromkeys(
            command.partition(" #")[0].strip()
            for each in among
            if each.language == "console"
            for line in each.text.splitlines()
            if line.startswith("$ ")
            for command in line[2:].partition(" #")[0].split(" && ")
        )
    )


def parses(line: str) -> None:
    """Raises where the command, or what it names, does not exist."""
    program, *words = shlex.split(line)
    match program:
        case "leantrain":
            some = "sam" if "lawa" in line else "lawa"  # in the place of a reader's own
            words = [re.sub(r"\b(my_idea|OTHER)\b", some, word) for word in words]
            if "--model" in words and (at := words.index("--model") + 1) and words[at] == "FOLDER":
                words[at] = str(ROOT / "baselines" / "published" / "gpt2-xl")
            group = typer.main.get_command(app)
            with group.make_context("leantrain", list(words)) as context:
                name, command, rest = group.resolve_command(context, list(words))  # type: ignore[attr-defined]
                command.make_context(name, rest, parent=context)
        case "make":
            targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            assert {word for word in words if "=" not in word} <= set(targets)
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
            assert set(re.findall(r"\[(\w+)\]", line)) <= set(extras)
        case "pytest":
            assert (ROOT / words[0]).exists()
        case ".":
            assert words == [".venv/bin/activate"]
        case "torchrun" | "python":  # with a module of ours, and perhaps another such line behind it
            own, *behind = line.split(" -- ")
            module = re.findall(r"-m ([\w.]+)", own)[-1]
            assert importlib.util.find_spec(module)
            options = set(re.findall(r"--[a-z-]+", own.partition(f"-m {module}")[2]))
            said = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text("utf-8")
            assert all(f'"{each}"' in said for each in options)
            for each in behind:
                parses(each)
        case "pytest-benchmark":
            assert words[0] == "compare"
        case _:
            raise AssertionError(f"nothing here says whether {program!r} is right")


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with the sweep files that the README shows, each named in its first line."""
    monkeypatch.chdir(tmp_path)
    for each in HANDWRITTEN:
        if each.language == "toml" and (name := re.match(r"# (\S+\.toml)\n", each.text)):
            Path(name[1]).write_text(each.text)


@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize("line", lines(HANDWRITTEN))
def test_every_shell_line_parses(line: str) -> None:
    parses(line)


def pattern(line: str) -> str:
    """A line without the names of techniques and baselines, which are all there is to most of a made page's lines."""
    names = {*catalogue(), *baselines()}
    return re.sub(r"\w+", lambda word: "NAME" if word[0] in names else word[0], line)


@pytest.mark.usefixtures("sweeps")
def test_every_shell_line_of_a_page_that_is_made_parses() -> None:
    """The first of each pattern is parsed; the others differ in names that exist."""
    own = lines(generated())
    assert len(own) > 5 * len(catalogue())
    first = {pattern(line): line for line in reversed(own)}
    assert len(first) < len(own) / 3
    for line in first.values():
        parses(line)


# Python --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a snippet may take for granted, in an empty folder; comparisons and counts are of pico models."""
    few = {"training": leantrain.Training(steps=2), "effort": leantrain.Effort(seeds=1, time=False, tune=False)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leantrain, "compare", _forced(leantrain.compare, size="pico", **few))
    monkeypatch.setattr(leantrain, "count", _forced(leantrain.count, size="pico", steps=2))
    model, inputs, targets = torch.nn.Linear(4, 10), torch.ones(2, 4), torch.tensor([3, 5])

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(inputs), targets)

    def closure() -> torch.Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    block = SimpleNamespace(mlp=SimpleNamespace(fc1=torch.nn.Linear(4, 4), fc2=torch.nn.Linear(4, 4)))
    return {
        "model": model,
        "inputs": inputs,
        "targets": targets,
        "indices": torch.arange(2),
        "dataset": inputs,
        "loader": [inputs],
        "block": block,
        "loss_of": loss_of,
        "closure": closure,
        "torch": torch,
        "F": functional,
        "leantrain": leantrain,
    }


def _forced(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return lambda *stacks, **others: partial(function, **others | settings)(*stacks)


def run(text: str, page: str, names: dict[str, Any]) -> None:
    own = names | {"loss": names["loss_of"](names["model"])}  # a graph of its own, for one backward pass
    exec(compile(text, page, "exec"), own)


def test_every_python_block_and_every_example_of_the_library_runs(names: dict[str, Any]) -> None:
    inside = {page: list(modules) for page, modules in PART_OF.items()}
    for each in HANDWRITTEN:
        if each.language == "python" and each.page in inside:
            exec(compile(each.text, each.page, "exec"), dict(vars(importlib.import_module(inside[each.page].pop(0)))))
        elif each.language == "python":
            run(each.text, each.page, names)
    assert not any(inside.values())
    modules = ("", ".averaging", ".communication", ".judging", ".layers", ".optim", ".tables", ".training", ".wrappers")
    for name in modules:
        module = importlib.import_module(f"leantrain{name}")
        tests = [each for each in doctest.DocTestFinder().find(module, globs={}) if each.examples]
        assert tests, f"{module.__name__} has no example"
        public = {each: getattr(leantrain.optim, each) for each in leantrain.optim.__all__}
        for test in tests:
            run("".join(example.source for example in test.examples), test.name, names | public)


def test_every_optimizer_s_page_shows_a_loop_that_runs(names: dict[str, Any]) -> None:
    shown = [each for each in generated() if each.language == "python" and each.page.startswith("techniques/")]
    for each in shown:
        before = [parameter.clone() for parameter in names["model"].parameters()]
        names["model"].zero_grad()
        run(each.text, each.page, names)
        assert any(not torch.equal(a, b) for a, b in zip(before, names["model"].parameters(), strict=True)), each.page
    assert {f"techniques/{name}.md" for name in ("lion", "lamb", "prox_grad_momentum")} <= {each.page for each in shown}


# YAML ----------------------------------------------------------------------------------------------------------------


def test_every_workflow_uses_the_action_as_it_is() -> None:
    action = yaml.safe_load((ROOT / "action" / "action.yml").read_text("utf-8"))
    shown = [yaml.safe_load(each.text) for each in HANDWRITTEN if each.language == "yaml"]
    shown.append(yaml.safe_load((ROOT / ".github/workflows/leantrain.yml").read_text("utf-8")))
    for workflow in shown:
        steps = workflow if isinstance(workflow, list) else next(iter(workflow["jobs"].values()))["steps"]
        (uses,) = [step for step in steps if step.get("uses", "").partition("@")[0].endswith("/action")]
        assert set(uses.get("with", {})) <= set(action["inputs"])
        outputs = re.findall(rf"steps\.{uses.get('id')}\.outputs\.([\w-]+)", str(steps))
        assert set(outputs) <= set(action["outputs"])
    assert len(shown) == 3


# pages ---------------------------------------------------------------------------------------------------------------


def test_every_technique_has_a_page_with_what_its_card_and_the_records_say() -> None:
    for id, entry in catalogue().items():
        text = site()[f"techniques/{id}.md"]
        for heading in ("## Use it", "## Results", "## Claims of the paper", "## Mutants", "## The code"):
            assert f"\n{heading}\n" in text, f"{id}: {heading}"
        assert entry.card.paper.arxiv in text and f"@misc{{{id}," in text


@pytest.mark.slow
def test_the_page_of_all_records_is_no_larger_than_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from suite.topics.board import html

    assert len(html.render(importlib.import_module("pages").report()).encode()) <= 3e6


def test_what_the_references_have_learned_is_what_the_records_say() -> None:
    """Else make it again: ``leantrain baselines``."""
    ends = {
        each.conditions.key: each.final.loss
        for each in Store(ROOT / "results").read()[0].learned
        if each.final and each.stack == "baseline" and each.seed == 0
    }
    known = references.read(ROOT / "results").learned
    assert {each.conditions.baseline for each in known} == set(baselines())
    for each in known:
        assert each.seeds[0]["loss"] == ends[each.conditions.key], each.conditions.baseline
        assert each.passed


def test_no_text_of_a_card_is_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import technique_pages

    entry = catalogue()["lion"]
    evil = "<script>x</script> [a](javascript:b) | `c` {{ d }}"
    monkeypatch.setitem(entry.__dict__, "card", entry.card.model_copy(update={"summary": evil, "variant": evil}))
    report = importlib.import_module("pages").report()
    text = technique_pages.page(entry, report, tables(Standing.of(report)))
    assert "<script>" not in text and "[a](" not in text
    assert text.count("&lt;script&gt;") == 2


def test_a_techniques_page_has_its_studies_drawn() -> None:
    studied = {path.name.partition("-")[0] for path in (ROOT / "results").glob("*/studies/*.json")}
    for id in catalogue():
        assert ("\n## Studies\n" in site()[f"techniques/{id}.md"]) == (id in studied), id
    assert site()["techniques/flip.md"].count('class="study"') == 1


def test_every_headline_of_a_chip_stands_beside_the_model_or_says_what_makes_it() -> None:
    text = site()["accelerators.md"].partition("## Modelled")[0]
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    claims = [claim for entry in catalogue().values() for claim in entry.card.claim]
    assert len(rows) == sum(claim.metric == "study.headlines.modelled" for claim in claims)
    assert all("modelled:" in row or "unavailable:" in row for row in rows)
    assert any("152.6 times faster" in row for row in rows)


def test_figures_of_context_are_quoted_and_every_constant_of_a_chip_says_where_it_is_from() -> None:
    from techniques.shared.chips.model import chips, context

    text = site()["accelerators.md"]
    rows = [line for line in text.splitlines() if line.startswith("| literature |")]
    assert len(rows) == len(context()) and "| 30 to 80 |" in rows[0]
    for each in chips().values():
        assert f"{each.clock_hz:g} ({each.source['clock_hz']})" in text
    assert "](techniques/sanger.md)" in text


def test_an_agent_finds_every_page_in_a_line_with_its_first_sentence() -> None:
    lines = [line for line in site()["llms.txt"].splitlines() if line.startswith("- ")]
    titles = [re.match(r"- \[([^\]]+)\]\(([^)]+)\)(: .+)?$", line) for line in lines]
    assert all(titles)
    addresses = {title[2]: title[3] for title in titles if title}
    assert len(addresses) == len(lines) and {f"techniques/{id}.html" for id in catalogue()} < addresses.keys()
    assert {
        "index.html",
        "agents.html",
        "methods/tries.html",
        "board.html",
        "reading.html",
        "commands.html",
    } <= addresses.keys()
    bare = {address for address, sentence in addresses.items() if not sentence}
    assert all(
        address in ("board.html", "models.html", "which.html") or address.startswith(("results/boards/", "api/"))
        for address in bare
    )


def test_what_agents_read_first_is_short_and_names_what_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    named = [name for name in re.findall(r"`([\w./]+)`", text) if "/" in name or name.endswith(".md")]
    assert len(named) > 10 and not [name for name in named if not (ROOT / name).exists()]


def test_the_page_says_of_recommended_stacks_what_was_measured() -> None:
    page = (ROOT / "docs" / "use.md").read_text("utf-8")
    measured = json.loads((ROOT / "tests" / "numbers" / "recommended.json").read_text("utf-8"))
    assert len(re.findall(r"^\| \w+ \| [\w+]+ \| ×", page, re.MULTILINE)) == len(measured) > 0
    for line in measured:
        cells = [line["baseline"], line["recommended"]]
        for against in ("the recipe", "random"):
            ratio, low, high = line[f"recommended over {against}"]["time to the same quality"]
            cells.append(f"×{ratio:.2f} [{low:.2f}, {high:.2f}]")
        assert f"| {' | '.join(cells)} |" in page
