"""What a step must have done comes from the card: a default that is changed moves what is done, and not what is
expected."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from suite.entries.catalogue import catalogue
from suite.entries.origins import departures
from suite.reading.recording import as_published
from tests.runs import new_recording

STEPS = 4


def change(monkeypatch: pytest.MonkeyPatch, technique: str, field: str, value: object) -> Any:
    """Changes a default of the class itself, as an edit of its file would."""
    cls = catalogue()[technique].technique
    given = [each.name for each in inspect.signature(cls.__init__).parameters.values() if each.default != each.empty]
    defaults = [value if name == field else old for name, old in zip(given, cls.__init__.__defaults__, strict=True)]
    monkeypatch.setattr(cls.__init__, "__defaults__", tuple(defaults))
    monkeypatch.setattr(cls.__dataclass_fields__[field], "default", value)
    return cls


def shown(stack: str, baseline: str) -> Mapping[str, float]:
    recording = new_recording(baseline, stack, size="pico", steps=STEPS)
    recording.train(STEPS)
    return recording.probes()


@pytest.mark.parametrize(
    ("stack", "baseline", "field", "value", "probe", "expected"),
    [
        ("sam", "gpt", "rho", 0.1, "sam.radius", 2.0),
        ("sam:rho=0.1", "gpt", "rho", 0.2, "sam.radius", 1.0),  # what the user sets is expected
    ],
)
def test_a_changed_default_shows(
    monkeypatch: pytest.MonkeyPatch,
    stack: str,
    baseline: str,
    field: str,
    value: float,
    probe: str,
    expected: float,
) -> None:
    change(monkeypatch, stack.partition(":")[0], field, value)
    assert shown(stack, baseline)[probe] == pytest.approx(expected, rel=1e-5)


def test_fields_have_their_published_values_for_the_while_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    card = catalogue()["saf"].card
    assert departures(catalogue()["saf"].technique(), card) == {}
    saf = change(monkeypatch, "saf", "start", 0.5)(strength=0.1)
    assert departures(saf, card) == {"start": 5 / 90}
    with as_published("saf", saf):
        assert (saf.start, saf.strength) == (5 / 90, 0.1)
    assert (saf.start, saf.strength) == (0.5, 0.1)
