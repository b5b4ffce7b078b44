"""Properties are read from the text of ``probes.py``, and each mistake is named with its line."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries.card import CardError, Property, read_card
from suite.entries.catalogue import catalogue
from suite.entries.properties import BOUNDS, MisstatedError, Stated, stated
from suite.entries.scaffold import CARD
from suite.reading.judged import judged

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
    assert len(calls) == len(read) == len(of_probes) > 0
    for call, each in zip(sorted(calls, key=lambda call: call.lineno), read, strict=True):
        said = {word.arg for word in call.keywords}
        assert "id" not in said or each.fields["id"] != each.probe, f"{path}:{each.line}: id is the probe's name"
        for field in each.fields.keys() - {"id", "statement", "expected", "relation"}:
            less = replace(each, fields={name: value for name, value in each.fields.items() if name != field})
            assert as_property(less) != as_property(each), f"{path}:{each.line}: {field} is what it is without"
        assert "equals" not in said or each.fields["expected"] != 0, f"{path}:{each.line}: 0 is the default"


def as_property(said: Stated) -> Property:
    return Property.model_validate({"metric": f"probe.some.{said.probe}", **said.fields})


def test_every_bound_has_its_relation() -> None:
    for word, relation in BOUNDS.items():
        (read,) = stated(f'@judged("x", "y", {word}=3)\ndef probes(): ...\n')
        assert (as_property(read).expected, as_property(read).relation) == (3.0, relation)
