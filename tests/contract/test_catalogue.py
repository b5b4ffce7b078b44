"""Finding entries: the installed ones, plug-ins beside them, broken ones, and the nearest names of unknown ones."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.contract.catalogue import UnknownId, catalogue, lookup
from suite.contract.stack import build
from suite.record.code import hash_files
from suite.record.job import StackError
from tests import plugin


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
            "from suite.contract.technique import Technique\nclass A(Technique): pass\nclass B(Technique): pass",
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


@given(
    st.lists(st.binary(max_size=5), min_size=2, max_size=2), st.lists(st.sampled_from("abc"), min_size=2, max_size=2)
)
def test_the_hash_tells_contents_and_names_apart(contents: list[bytes], names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, (name, content) in enumerate(zip(names, contents, strict=True)):
            path = Path(folder) / str(number) / name
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(path)
        equal = names[0] == names[1] and contents[0] == contents[1]
        assert (hash_files([paths[0]]) == hash_files([paths[1]])) == equal
        assert hash_files(paths) == hash_files(reversed(paths)) == hash_files(paths[:1], paths[1:])


def test_a_changed_card_keeps_the_hash_and_changed_code_does_not(installed: Callable[..., Path]) -> None:
    folder = installed("plugin_hashed", hashed="pass") / "hashed"
    before = catalogue()["hashed"].source_sha256
    (folder / "card.toml").write_text((folder / "card.toml").read_text() + "\n# a note\n")
    catalogue.cache_clear()
    assert catalogue()["hashed"].source_sha256 == before
    for addition, stale in (("\n# a note\n", False), ("\nNUMBER = 1\n", True)):
        (folder / "technique.py").write_text((folder / "technique.py").read_text() + addition)
        catalogue.cache_clear()
        assert (catalogue()["hashed"].source_sha256 != before) == stale


def test_what_a_technique_imports_from_its_neighbours_is_part_of_its_hash(installed: Callable[..., Path]) -> None:
    folder = installed("plugin_near", far="pass", middle="pass", near="pass", broken="pass")
    for name, code in (
        ("near", "def later():\n    from plugin_near.planted.middle import technique\n"),
        ("middle", "import plugin_near.planted.far.technique\n"),
        ("broken", "def"),
    ):
        (folder / name / "technique.py").write_text(code)

    def hashes() -> dict[str, str]:
        catalogue.cache_clear()
        return {name: catalogue()[name].source_sha256 for name in ("far", "middle", "near", "broken")}

    before = hashes()
    (folder / "far" / "technique.py").write_text("x = 1\n")
    after = hashes()
    assert {name for name in before if before[name] != after[name]} == {"far", "middle", "near"}
