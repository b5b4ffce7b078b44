"""Where numbers come from, as the list of commands and the pages show it."""

import pytest

from suite.entries.catalogue import catalogue
from suite.entries.origins import departures, inherited, number, rows, shown


def test_the_papers_come_first_and_the_others_say_why() -> None:
    settings = {name: (value, place) for name, value, place in rows(catalogue()["lora"])}
    assert list(settings)[:2] == ["rank", "alpha"]
    assert settings["rank"][0] == "8"
    assert settings["rank"][1].startswith("Authors' code: examples/NLU/roberta_base_mnli.sh")
    assert settings["train_head"] == ("true", "ours: as in the paper's classification tasks, whose heads are new")


def test_what_a_base_hands_down_is_shown_with_the_rest() -> None:
    names = [name for name, *_ in rows(catalogue()["topk_ef"])]
    assert names == ["feedback", "ranks", "ratio"]
    assert inherited(catalogue()["lora"].technique) == {}
    assert "adaptive" in inherited(catalogue()["sam"].technique)


def test_no_default_departs_from_its_card() -> None:
    for id in ("lora", "qsgd", "layerscale"):
        entry = catalogue()[id]
        assert departures(entry.technique(), entry.card) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (False, "false"),
        (1e-06, "1e-06"),
        ((0.25, 0.5), "0.25, 0.5"),
        (((1, 2), (3, 4)), "(1, 2), (3, 4)"),
        ({"L1": 4}, "L1 4"),
    ],
)
def test_values_are_shown_as_commands_take_them(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_fraction_is_its_quotient() -> None:
    assert (number("5/90"), number("except_last"), number(8)) == (5 / 90, "except_last", 8)
