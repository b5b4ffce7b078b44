"""The shape of the house: what a reader may count on."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MODULES = 25
LONGEST = 60  # lines of a function
FLOORS: list[set[str]] = [
    {"record", "device", "model"},
    {"process"},
    {"meters", "kernels"},
    {"chain", "pipeline"},
    {"loop"},
    {"entries"},
    {"reading", "judge"},
    {"measure"},
    {"guard"},
    {"show"},
    {"topics"},
    {"cli"},
]
"""Each imports from those above it in this list, and from no neighbour."""


def trees(folder: str) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for path in sorted((ROOT / folder).rglob("*.py"))}


def test_no_class_of_the_suite_is_called_as_another() -> None:
    places = defaultdict(list)
    for path, tree in trees("suite").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_suite_imports_no_technique_and_no_baseline() -> None:
    imported = {
        (str(path.relative_to(ROOT)), node.module)
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("techniques", "baselines")
    }
    assert imported == set()


def test_what_is_installed_imports_no_study() -> None:
    """``research`` is not in the wheel: nothing that is may need it."""
    imported = {
        str(path.relative_to(ROOT))
        for folder in ("suite", "leantrain", "baselines", "techniques")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and re.match(r"(from|import) research\b", ast.unparse(node))
    }
    assert imported == set()


WORDS_OF_OTHERS = {"set", "mae"}
"""Ids that are also a word of ip(8), and a baseline."""


def test_no_technique_is_named_in_the_suite() -> None:
    """But in examples of help and docstrings."""
    ids = {path.parent.name for path in (ROOT / "techniques").glob("*/*/card.toml")} - WORDS_OF_OTHERS
    named = {
        f"{path.relative_to(ROOT)}: {node.value}"
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(":")[0] in ids
    }
    assert len(ids) > 100 and named == set()


def test_a_folder_of_the_suite_can_be_looked_through() -> None:
    folders = [path for path in (ROOT / "suite").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert {path.name for path in folders if len([*path.glob("*.py")]) - 1 > MOST_MODULES} == set()


def test_arrows_point_down() -> None:
    """What is imported for its types alone counts, too, but for the loop's, whose parts speak of each other."""
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert floor.keys() == {path.name for path in (ROOT / "suite").iterdir() if any(path.glob("*.py"))}
    upward = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        for module in imported_by(node)
        if path.parts[-2] != "suite" and module.count(".") and floor[here(path)] <= floor[room_of(module)]
        if here(path) != room_of(module)
    }
    assert upward == set()


THE_LIST = "board"
BUILT_UPON = {"modelled_time", "memory_plan"}
"""Topics that others are built upon."""
ITS_FORM = "on_board"
"""What a topic brings to the list: the module, beside the topics, names the report that the list makes it of."""


def test_a_topic_is_imported_by_the_board_alone() -> None:
    """And by its own command, by what users import, and by the studies of techniques."""
    taken = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path, tree in trees("suite").items()
        if here(path) == "topics"
        and (own := path.relative_to(ROOT / "suite/topics").parts[0]) not in (THE_LIST, f"{ITS_FORM}.py")
        for node in ast.walk(tree)
        for module in imported_by(node)
        if room_of(module) == "topics" and len(parts := module.split(".")) > 2
        if parts[2] not in (own, *BUILT_UPON, ITS_FORM)
    }
    assert taken == set()


def test_a_technique_s_own_section_is_made_of_parts_that_topics_bring() -> None:
    """The board names no topic for it: whatever is called ``*_on_page`` has a part."""
    for name in ("contents", "sections"):
        tree = ast.parse((ROOT / f"suite/topics/board/{name}.py").read_bytes())
        taken = {module for node in ast.walk(tree) for module in imported_by(node) if room_of(module) == "topics"}
        others = {module for module in taken if not module.startswith("suite.topics.board")}
        assert others <= {"suite.topics", f"suite.topics.{ITS_FORM}"}


def test_no_module_is_called_as_another() -> None:
    names = [path.name for path in sorted((ROOT / "suite").rglob("*.py")) if not path.name.startswith("__")]
    assert {name for name in names if names.count(name) > 1} == set()


def test_no_module_waits_for_itself() -> None:
    """What a module imports when it is loaded never leads back to it."""
    modules = {module_of(path): tree for path, tree in trees("suite").items()}
    imports = {name: {*loads(tree, modules)} - {name} for name, tree in modules.items()}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def loads(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """The modules among these that one imports outside of functions, and not for its types alone."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in below if node.module in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            waiting += ast.iter_child_nodes(node)


def imported_by(node: ast.AST) -> list[str]:
    """The modules of the suite that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module] if node.module.startswith("suite.") else []
    return [each.name for each in node.names if each.name.startswith("suite.")] if isinstance(node, ast.Import) else []


def here(path: Path) -> str:
    return path.relative_to(ROOT / "suite").parts[0]


def room_of(module: str) -> str:
    return module.split(".")[1]


BEHIND_THE_DOOR = {"suite.entries.spelling.build", "suite.entries.packages.assembled", "suite.entries.jobs.run_of"}
BEHIND = {
    "entries/together.py": "it is the door",
    "entries/packages.py": "a step behind it",
    "entries/jobs.py": "a step behind it",
    "entries/pretrained.py": "the baseline alone; adapted runs depend on its code",
    "reading/recording.py": "stacks that cards name; counts depend on its code",
}
"""Modules that build stacks or runs without asking what cannot be stacked, and why they may."""


def test_there_is_one_door_to_a_stack_and_one_to_a_run() -> None:
    """Who is told a stack asks ``suite.entries.together``, and what builds one from its spelling stands behind it."""
    behind, making = set(), set()
    for folder in ("suite", "leantrain"):
        for path, tree in trees(folder).items():
            place = str(path.relative_to(ROOT / "suite" if folder == "suite" else ROOT))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = {name for alias in node.names for name in (node.module, f"{node.module}.{alias.name}")}
                    if names & {*BEHIND_THE_DOOR, "suite.entries.jobs"}:
                        behind.add(place)
                elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("Stack", "configured"):
                    making.add(place)
    assert behind == BEHIND.keys()
    assert making == {"entries/spelling.py", "entries/packages.py", "entries/jobs.py"}


def test_no_private_name_crosses_a_folder() -> None:
    taken = {
        f"{path.relative_to(ROOT)} takes {node.module}.{alias.name}"
        for folder in ("suite", "techniques", "baselines", "leantrain")
        for path, tree in trees(folder).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in ("suite", "techniques", "baselines")
        for alias in node.names
        if alias.name.startswith("_")
    }
    assert taken == set()


def test_the_formatter_decides() -> None:
    """But where a kernel's parameters stand a line for each tensor, which the comment says."""
    skips = [
        line
        for folder in ("suite", "techniques", "baselines", "leantrain", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if line.rstrip().startswith("):  # fmt:") or ("# fmt: " in line and path.name != "test_shape.py")
    ]
    assert len(skips) <= 20
    assert all("skip - " in line for line in skips)


def test_a_function_can_be_looked_through() -> None:
    """But a kernel's, which is one program."""
    longer = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for folder in ("suite", "techniques", "baselines", "leantrain")
        for path, tree in trees(folder).items()
        if not path.name.endswith("kernel.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > LONGEST
    }
    assert longer == set()


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of its body, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


OWN_READERS = {
    "record/files.py": "it is the reader",
    "topics/published_quality/quality_rows.py": "ours, in the package",
    "topics/modelled_time/devices.py": "ours, in the package",
    "record/uninstalled.py": "ours, beside the package",
    "entries/code.py": "installed code",
    "record/machine.py": "of the system",
    "record/numerics.py": "of the system",
    "judge/versions.py": "installed code",
    "entries/sources.py": "installed code",
    "entries/pretrained.py": "a model's folder, after entries/locations.py looked through it",
    "entries/checkpoints.py": "as that",
    "topics/board/html.py": "ours, in the package",
    "topics/board/which_page.py": "ours, in the package",
    "topics/models/models_page.py": "ours, in the package",
    "topics/recommend/whole_answer.py": "of the system",
    "topics/modelled_time/traced.py": "installed code",
    "topics/references/measured_references.py": "what its own process answered",
    "guard/rehearsal.py": "its own, in the cache",
    "guard/gate_worker.py": "its own pipe",
}
"""Modules that read files without asking what they are, and why they may."""


def test_what_others_may_have_put_there_has_one_reader() -> None:
    """A pipe or a device in the place of a file would be waited for, or fill the memory: ``suite.record.files`` opens
    regular files alone, and is what reads results, models and data."""
    readers = {
        str(path.relative_to(ROOT / "suite"))
        for room in ("record", "judge", "entries", "guard", "show", "topics")
        for path, tree in trees(f"suite/{room}").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and reads(node)
    }
    assert readers == OWN_READERS.keys()


def reads(call: ast.Call) -> bool:
    """Whether a call opens a file to read it."""
    name = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    modes = [*call.args[:2], *(each.value for each in call.keywords)]
    writes = any(isinstance(each, ast.Constant) and str(each.value) in ("a", "w", "wb", "x", "ab") for each in modes)
    of_another = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("os", "Image", "webbrowser")
    return name in ("read_text", "read_bytes") or (name == "open" and not writes and not of_another)


BARE = re.compile(r"(Of|As|By|With|Without|From|At|On|For|In|Under|To|After|Before|Among|Those|The same)\b")


def test_a_docstring_names_what_it_is_about() -> None:
    """At its beginning: "The seeds of what was learned.", not "Of what was learned."."""
    bare = {
        f"{path.relative_to(ROOT)}: {said.splitlines()[0]}"
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (said := ast.get_docstring(node))
        and BARE.match(said)
    }
    assert bare == set()


def test_every_word_of_the_glossary_is_used() -> None:
    _, _, words = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Words\n")
    glossary = re.findall(r"^\| ([a-z ]+) \|", words.partition("\n## ")[0], re.MULTILINE)[1:]  # without the head
    assert 20 < len(set(glossary)) == len(glossary) <= 30
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "suite").rglob("*.py")]
    texts = [" ".join(path.read_text("utf-8").replace("_", " ").lower().split()) for path in pages]
    assert {word for word in glossary if sum(word in text for text in texts) < 3} == set()
