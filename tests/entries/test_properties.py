"""Properties are read from the text of ``probes.py``, and each mistake is named with its line."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries import module_files
from suite.entries.card import CardError, Property, read_card
from suite.entries.catalogue import catalogue
from suite.entries.properties import BOUNDS, MisstatedError, Stated, stated
from suite.entries.scaffold import CARD
from suite.reading.judged import judged

ROOT = Path(__file__).parents[2]

GOOD = """\
import torch_is_not_imported

LIMIT = 2.0


@judged("against", "No coordinate moves against the sign.", "Algorithm 2, line 5", id="direction")
@judged(
    "roundings",
    "The step is the rate, "
    "to roundings.",
    at_most=4.0,  # of the weight
    sizes=["pico", "nano"],
)
def probes(recording, own):
    return {"against": 0.0, "roundings": 1.0}


@functools.cache
@judged("share", "A tenth stays.", equals=1e-1, tolerance=0.01, kind="counted")
def _share(recording) -> float:
    return 0.1
"""


def card_of(tmp_path: Path, probes: str) -> tuple[Property, ...]:
    path = tmp_path / "ideas" / "idea" / "card.toml"
    path.parent.mkdir(parents=True)
    path.write_text(CARD.format(id="idea", name="Idea", category="ideas"))
    path.with_name("probes.py").write_text(probes)
    return read_card(path).properties


def test_all_that_functions_are_decorated_with_is_read_and_nothing_is_run(tmp_path: Path) -> None:
    against, roundings, share = card_of(tmp_path, GOOD)
    assert against == Property(
        id="direction",
        statement="No coordinate moves against the sign.",
        place="Algorithm 2, line 5",
        metric="probe.idea.against",
        scope="step",
        absolute=True,
    )
    assert (roundings.id, roundings.statement) == ("roundings", "The step is the rate, to roundings.")
    assert (roundings.expected, roundings.relation, roundings.sizes) == (4.0, "<=", ("pico", "nano"))
    assert (share.metric, share.expected, share.relation) == ("probe.idea.share", 0.1, "==")
    assert (share.tolerance, share.kind, share.place) == (0.01, "counted", "")
    assert "torch_is_not_imported" not in sys.modules
    assert [each.line for each in stated(GOOD)] == [6, 7, 19]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("at_most=4.0", "at_most=LIMIT", "11: at_most is LIMIT, which only running the file would tell: write its"),
        ("at_most=4.0", "at_most=4 / 3", "11: at_most is 4 / 3, which only"),
        ('"to roundings."', 'f"to {LIMIT}."', "9: statement is f'The step is the rate, to {LIMIT}.', which only"),
        ("at_most=4.0", "at_most=4.0, below=5.0", "7: at_most and below are two bounds: write one property for each"),
        ("at_most=4.0", "expected=4.0", "7: @judged has no expected: write one of equals, at_most, at_least, below"),
        ("at_most=4.0", 'metric="flops"', "7: @judged has no metric: write a [[property]] of the card"),
        ("at_most=4.0", "at_least='four'", "7: at_least: Input should be a valid number"),
        ("at_most=4.0", "at_most=1e999", "7: at_most: Input should be a finite number"),
        ("at_most=4.0", "at_must=4.0", "7: at_must: Extra inputs are not permitted"),
        ("at_most=4.0", "**BOUND", "11: say BOUND by its word: only probe, statement, place need none"),
        ('id="direction"', '"direction"', "6: say 'direction' by its word: only probe, statement, place"),
        ('("against", "No coordinate moves against the sign.", "Algorithm 2, line 5"', '("against"', "6: the state"),
        ('@judged("share"', '@judged\n@judged("share"', "19: the probe is missing: write @judged(PROBE, STATEMENT"),
        ('kind="counted"', 'kind="measured"', "19: kind: Input should be 'identity' or 'counted'"),
        ('@judged("against"', '@judged["against"', "6: not valid Python: "),
        ('@judged("against"', '  @judged("against"', "6: not valid Python: unexpected indent"),
        ('id="direction"', 'id="same_state"', "two claims have the same id"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CardError) as caught:
        card_of(tmp_path, GOOD.replace(old, new))
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert "two claims" in message or f"probes.py:{message}" in str(caught.value)


SHARED = """\
@judged("held", "Each is held.", "The definition", id="each_is_held")
@judged("late", "None is late.", at_most=1.0)
def holdings(recording): ...


@judged_as(holdings, "Section 1")
@judged("other", "Something else.")
def further(recording): ...


def silent(recording): ...
"""
TAKING = """\
from plugin.shared import further, holdings, silent


@judged("late", "None is too late.", "Section 4", id="late", at_most=2.0)
@judged_as(holdings, "Section 3")
def probes(recording, own): ...
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a module of shared functions, which is found and not imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin/__init__.py").write_text("raise SystemExit")
    (tmp_path / "plugin/shared.py").write_text(SHARED)
    monkeypatch.setattr(module_files, "_top", module_files._top.__wrapped__)


@pytest.mark.usefixtures("plugin")
def test_what_several_share_is_stated_once_and_each_says_where_its_rule_stands(tmp_path: Path) -> None:
    late, held = card_of(tmp_path, TAKING)
    assert (late.id, late.statement, late.place, late.expected) == ("late", "None is too late.", "Section 4", 2.0)
    assert (held.id, held.metric, held.place) == ("each_is_held", "probe.idea.held", "The definition")
    held, late = card_of(tmp_path / "again", TAKING.replace('@judged("late"', "#"))
    assert (held.place, late.place, late.expected, late.relation) == ("The definition", "Section 3", 1.0, "<=")


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("(silent)", "5: silent of plugin.shared states nothing: write @judged on it"),
        ("(further)", "5: further states what others share itself: write @judged_as of those here"),
        ("(unknown)", "5: where unknown stands is not known: import it from its module"),
        ("", "5: write @judged_as(FUNCTION, PLACE)"),
        ("('holdings')", "5: write @judged_as(FUNCTION, PLACE)"),
        ("(holdings, id='x')", "5: write @judged_as(FUNCTION, PLACE)"),
        ("(holdings, SECTION)", "5: place is SECTION, which only running"),
    ],
)
def test_a_mistake_in_what_is_shared_is_one_sentence(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(CardError) as caught:
        card_of(tmp_path, TAKING.replace('(holdings, "Section 3")', given))
    assert f"probes.py:{message}" in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"probes\.py:6: not valid Python: "):
        card_of(tmp_path, GOOD.replace("at_most=4.0", "at_most=\0"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*'@judged("a"=,)[]{}*#\\\n \t\0', "@judged(", "def f():", "x=", "'s'"]), max_size=30))
def test_whatever_stands_there_it_is_read_or_refused(parts: list[str]) -> None:
    try:
        read = [*stated("@judged" + "".join(parts))]
    except MisstatedError as error:
        read, line, sentence = [], error.line, str(error)
    else:
        line, sentence = 1, ""
    assert line >= 1 and len(sentence.splitlines()) <= 1 and all(isinstance(each, Stated) for each in read)


def test_a_decorated_function_is_what_it_was() -> None:
    def probes() -> dict[str, float]:
        return {"against": 0.0}

    assert judged("against", "None.", "Algorithm 2", id="direction", at_most=1.0)(probes) is probes


@pytest.mark.parametrize("id", catalogue())
def test_no_word_says_the_default_and_every_decorator_is_read(id: str) -> None:
    path = catalogue()[id].folder / "probes.py"
    text = path.read_text("utf-8")
    read = [*stated(text)]
    calls = [node for node in ast.walk(ast.parse(text)) if getattr(getattr(node, "func", None), "id", "") == "judged"]
    of_probes = [each for each in catalogue()[id].card.properties if each.metric.startswith("probe.")]
    own = {call.lineno: {word.arg for word in call.keywords} for call in calls}
    assert len(read) == len(of_probes) > 0 and own.keys() <= {each.line for each in read}
    for each in read:
        said = own.get(each.line, set())
        assert "id" not in said or each.fields["id"] != each.probe, f"{path}:{each.line}: id is the probe's name"
        for field in each.fields.keys() - {"id", "statement", "expected", "relation"}:
            less = replace(each, fields={name: value for name, value in each.fields.items() if name != field})
            assert as_property(less) != as_property(each), f"{path}:{each.line}: {field} is what it is without"
        assert "equals" not in said or each.fields["expected"] != 0, f"{path}:{each.line}: 0 is the default"


def test_what_a_shared_function_states_some_technique_states() -> None:
    stating = {
        (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), node.name)
        for path in sorted((ROOT / "techniques").rglob("shared/**/*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef) and any(map(is_judged, node.decorator_list))
    }
    taken = set()
    for entry in catalogue().values():
        tree = ast.parse((entry.folder / "probes.py").read_bytes())
        imports = {
            each.name: str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "judged_as":
                name = ast.unparse(node.args[0])
                taken.add((imports[name], name))
    assert stating == taken and len(stating) >= 6


def is_judged(decorator: ast.expr) -> bool:
    return getattr(getattr(decorator, "func", None), "id", "") == "judged"


def as_property(said: Stated) -> Property:
    return Property.model_validate({"metric": f"probe.some.{said.probe}", **said.fields})


def test_every_bound_has_its_relation() -> None:
    for word, relation in BOUNDS.items():
        (read,) = stated(f'@judged("x", "y", {word}=3)\ndef probes(): ...\n')
        assert (as_property(read).expected, as_property(read).relation) == (3.0, relation)
