"""Finding entries: the installed ones, plug-ins beside them, broken ones, and the nearest names of unknown ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.entries.cards import known_as, with_cards
from suite.entries.catalogue import UnknownId, catalogue, lookup, reference_of
from suite.entries.spelling import build
from suite.judge.claims import chosen
from suite.judge.rows import rows
from suite.record.job import StackError
from suite.record.store import Records
from tests import factories, plugin


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Installs a plug-in with these techniques for the test."""

    def install(package: str, **bodies: str) -> Path:
        plugin.write(tmp_path, bodies, package)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        catalogue.cache_clear()
        return tmp_path / package / "planted"

    yield install
    catalogue.cache_clear()


def test_a_plug_in_stands_beside_the_projects_own(installed: Callable[..., Path]) -> None:
    own = set(catalogue())
    installed("plugin_beside", twin="rank: int = 3")
    assert set(catalogue()) == own | {"twin"}
    assert list(catalogue()) == sorted(catalogue())
    stack = build("twin:rank=5+lion")
    assert stack.techniques["twin"].rank == 5  # type: ignore[attr-defined]


def test_two_packages_may_not_bring_one_id(installed: Callable[..., Path]) -> None:
    installed("plugin_double", lion="pass")
    with pytest.raises(ValueError, match=r"two techniques are called lion: .*lion, .*lion"):
        catalogue()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_library", "broken cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"),
        ("def", "broken cannot be imported: SyntaxError"),
        ("x = 1", "define exactly one @dataclass subclass of Technique, found 0"),
        (
            "from suite.loop.technique import Technique\nclass A(Technique): pass\nclass B(Technique): pass",
            "found 2",
        ),
    ],
)
def test_a_broken_entry_is_named_and_hurts_nobody_else(installed: Callable[..., Path], code: str, message: str) -> None:
    number = hash(code) % 10**6  # a package of its own: modules stay imported
    folder = installed(f"plugin_broken_{number}", broken="pass")
    (folder / "broken" / "technique.py").write_text(code)
    with pytest.raises(StackError, match=message):
        build("broken")
    build("lion")


def test_a_broken_card_is_named_and_hurts_nobody_else(installed: Callable[..., Path]) -> None:
    """Not in what reads every card, and not in the rows of records that the entry has."""
    folder = installed("plugin_card", cardless="pass")
    (folder / "cardless" / "card.toml").write_text("id = ")
    sound, broken = with_cards(catalogue())
    assert set(catalogue()) - set(sound) == {"cardless"} == set(broken)
    assert "cardless/card.toml: not valid TOML" in broken["cardless"]
    assert len(chosen(None)) == len(sound)
    lines = [factories.counted(), factories.counted("cardless")]
    assert [row.stack for row in rows(Records.of(lines))] == ["cardless"]


@pytest.mark.parametrize("empty", ["", "baseline"])
def test_the_empty_stack(empty: str) -> None:
    assert build(empty).techniques == {}


def test_an_unknown_name_gets_its_neighbours() -> None:
    among = {"lion": 1, "lamb": 2, "adamw": 3}
    assert lookup("technique", "lamb", among) == 2
    with pytest.raises(UnknownId, match=r"no technique is called 'lino'; did you mean lion\?"):
        lookup("technique", "lino", among)
    with pytest.raises(UnknownId, match="there are: adamw, lamb, lion"):
        lookup("technique", "zzzzz", among)
    with pytest.raises(UnknownId, match="there are: none"):
        lookup("technique", "lion", {})
    with pytest.raises(UnknownId) as many:
        lookup("technique", "0", {f"name_{number}": number for number in range(100)})
    assert "the nearest of 100: " in str(many.value) and str(many.value).count("name_") == 5


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("lora", {"lora"}),
        ("LoRA", {"lora"}),
        ("2106.09685", {"lora"}),
        ("arXiv:2106.09685", {"lora"}),
        ("Low-Rank Adaptation of Large", {"lora"}),
        ("attention", {"a3", "dfss", "dota", "elsa", "flashattention", "sanger", "vitcod"}),
        ("ZeRO", {"zero1", "zero2", "zero3_fsdp", "zero_infinity_param", "zero_offload"}),
        ("sharpness-aware", {"sam", "esam", "saf"}),
    ],
)
def test_an_entry_is_known_by_its_id_its_name_its_paper_and_its_category(text: str, ids: set[str]) -> None:
    meant = {entry.id for entry in known_as(text, catalogue())}
    assert meant >= ids
    if len(ids) == 1:
        assert meant == ids
    with pytest.raises(UnknownId, match="did you mean lora"):
        known_as("lorra", catalogue())
    with pytest.raises(UnknownId, match="did you mean sam"):
        known_as("sma", catalogue())  # which stands in small, and in smart


def test_a_stack_is_measured_against_what_its_cards_name() -> None:
    assert reference_of("lion") == ("baseline", "pretrain")
    assert reference_of("zero1") == ("dp_ddp", "pretrain")
    assert reference_of("lora:rank=2")[1] == "adapt"
    with pytest.raises(UnknownId):
        reference_of("lionn")
