"""The text that every installation has: the same under each interpreter, and what is missing is said."""

import hashlib
import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import baselines
from baselines import documents, listing, text
from baselines.bert import Bert
from baselines.gpt import Gpt

# Reads nothing that is not in the standard library: other interpreters have none of our packages.
_READ = """
import hashlib, sys
from baselines import documents
texts = documents.read([each for each in documents.listed() if each.library == documents.PYTHON])
print(sys.version.split()[0], sum(each.missing for each in texts))
print(hashlib.sha256("\\0".join(each.text for each in texts).encode()).hexdigest())
"""


def _read_by(python: str | Path) -> tuple[str, str, str]:
    """Version, number of missing docstrings, and the hash of the standard library's, by an interpreter."""
    home = Path(baselines.__file__).parent.parent
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _READ], cwd=home, capture_output=True, text=True, check=True, timeout=60
    )
    version, missing, sha256 = done.stdout.split()
    return version, missing, sha256


def _others() -> dict[str, Path]:
    """Interpreters of other versions on this machine, by version."""
    found = {}
    for folder in os.get_exec_path():
        for minor in range(11, 16):
            python = Path(folder, f"python3.{minor}")
            if python.is_file():
                asked = [python, "-c", "import sys; print(sys.version.split()[0])"]
                answer = subprocess.run(asked, capture_output=True, text=True, timeout=60)
                if answer.returncode == 0 and answer.stdout.strip() != sys.version.split()[0]:
                    found[answer.stdout.strip()] = python
    return found


def test_another_python_reads_the_same_text():
    others = _others()
    if not others:
        pytest.skip("no Python of another version, 3.11 or later, is on this machine's path")
    here = documents.read([each for each in documents.listed() if each.library == documents.PYTHON])
    sha256 = hashlib.sha256("\0".join(each.text for each in here).encode()).hexdigest()
    assert {version: _read_by(python) for version, python in others.items()} == {
        version: (version, "0", sha256) for version in others
    }


def test_the_data_has_the_hash_that_it_has_everywhere():
    """As written down here: an interpreter, a build or a dependency that changes it shows, one that does not passes."""
    for data, sha256 in (
        (Gpt().data("pico", "pretrain"), "6d18f982c8fab1e5"),
        (Gpt().data("pico", "adapt"), "77f78e89f39b9382"),
        (Bert().data("pico", "pretrain"), "ce2d4ab0dc8e216e"),
    ):
        assert "missing" not in data.name
        assert data.sha256.startswith(sha256)


def test_what_is_missing_is_named_and_the_data_is_another(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = Gpt().data("pico", "pretrain")
    victim = text._chosen("pretrain", text._LIMIT["pico"])["train"][0]
    location = documents.location

    def elsewhere(file: str) -> Path | None:
        return tmp_path / "nowhere.py" if file in victim.files else location(file)

    monkeypatch.setattr(documents, "location", elsewhere)
    with pytest.warns(UserWarning, match=f"{len(victim.hashes)} of .* missing here, in {victim.name}"):
        data = Gpt().data("pico", "pretrain")
    assert f"{len(victim.hashes)} of" in data.name and "missing here" in data.name
    assert data.sha256 != whole.sha256
    held_out = [(each.validation.tensors["input_ids"], each.test.tensors["input_ids"]) for each in (data, whole)]
    assert all(np.array_equal(a, b) for a, b in zip(*held_out, strict=True)), "the other parts stay"


def test_docstrings_are_those_of_modules_classes_and_functions(tmp_path):
    code = (
        '"""one"""\nclass A:\n    """two"""\n    def f(self):\n        "three"\n        "four"\nx = "five"\n'
        'if x:\n    pass\nelse:\n    try:\n        pass\n    except E:\n        async def g():\n            """six\n\n'
        '            seven"""\n'
    )
    (tmp_path / "a.py").write_text(code)
    (tmp_path / "b.py").write_text("def (")
    assert list(documents.docstrings(tmp_path / "a.py")) == ["one", "two", "three", "six\n\nseven"]
    assert list(documents.docstrings(tmp_path / "b.py")) == []


def test_the_list_is_small_sorted_and_without_what_distributions_leave_out():
    modules = documents.listed()
    assert documents.LIST.stat().st_size < 400_000
    assert not {part for each in modules for file in each.files for part in file.split("/")} & listing.LEFT_OUT
    for library in {each.library for each in modules}:
        names = [each.name for each in modules if each.library == library]
        assert all(a < b for a, b in pairwise(names))
    assert all(each.letters >= listing.FEWEST_OF_A_MODULE and each.hashes for each in modules)


def test_the_list_has_what_is_equal_in_all_versions_wherever_it_is(tmp_path, monkeypatch):
    common, moved, changed = ("x" * 1000 + each for each in ("common", "moved", "changed"))
    for version, files in {
        "old": {"a.py": [common, moved, changed], "test/b.py": [common]},
        "new": {"a.py": [changed + "!", common], "package/c.py": [moved, "y" * 2000]},
    }.items():
        for name, texts in files.items():
            path = tmp_path / version / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f'def f{at}():\n    """{each}"""\n' for at, each in enumerate(texts)))
    (line,) = listing.lines([("library", [tmp_path / "old", tmp_path / "new"])])
    module = documents._module(line)
    assert module.files == ("library/a.py", "library/package/c.py")
    assert module.letters == len(common + moved)
    for version in ("old", "new"):
        monkeypatch.setattr(documents, "_folder", lambda library, version=version: tmp_path / version)
        assert documents.read([module]) == [documents.Text(f"{common}\n{moved}", 0)]
