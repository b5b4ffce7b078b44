"""Makes documents.txt: ``python -m baselines.listing python=FOLDER numpy=FOLDER scipy=FOLDER ... > documents.txt``.

Give each library several times, once for each version (or build) whose docstrings must be equal: Python's library
folder of each supported version; of each package the folder of the oldest version that pyproject.toml allows and of the
pinned one. The first names the modules. Run it under the newest Python, which can read what the older ones can.

The list that is here was made from Python 3.11.2 (Debian's, as first published and as last updated), 3.11.7, 3.12.1,
3.13.0 and 3.14.2 (as built for WebAssembly, which lacks some modules), and from NumPy 1.26.0 and 2.4.6, SciPy 1.13.0
and 1.17.1, pandas 2.2.0 and 3.1.1, Matplotlib 3.8.0 and 3.11.2, NetworkX 2.8.8 and 3.6.1, PyTorch 2.11.0 and 2.15.0,
SymPy 1.13.3 and 1.14.0, scikit-learn 1.4.0 and 1.9.1.
"""

import os
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path

from baselines.documents import docstrings, hashed, unwatched

FEWEST_LETTERS = 40  # of a docstring
FEWEST_OF_A_MODULE = 1000  # letters: half of the modules hold a fourteenth of the text, and all are read to prepare it
# What some distributions leave out or write themselves, what some versions no longer have, what is no text to learn.
LEFT_OUT = frozenset(
    {
        *("site-packages", "dist-packages", "_vendor", "__pycache__", "test", "tests", "testing", "idle_test"),
        *("pydoc_data", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3", "ensurepip", "distutils"),
        *("sitecustomize.py", "version.py", "_version.py", "__config__.py"),
    }
)


def lines(libraries: Sequence[tuple[str, Sequence[Path]]]) -> Iterator[str]:
    """Yields the list's lines: for each module that has docstrings which are in all of its library's ``folders``,
    the number of their letters, their hashes, and the files that hold them. A docstring is listed once, where it is
    first."""
    listed: set[bytes] = set()
    for library, folders in libraries:
        versions = [_by_file(library, folder) for folder in folders]
        holders = [_holders(version) for version in versions]
        common = set.intersection(*map(set, holders))
        for file, texts in sorted(versions[0].items()):
            hashes = [digest for digest in texts if digest in common and digest not in listed]
            letters = sum(_letters(texts[digest]) for digest in hashes)
            if letters < FEWEST_OF_A_MODULE:
                continue
            listed.update(hashes)
            files = dict.fromkeys([file, *(holder[digest] for digest in hashes for holder in holders[1:])])
            yield f"{letters} {urlsafe_b64encode(b''.join(hashes)).decode()} {' '.join(files)}"


@unwatched
def _by_file(library: str, folder: Path) -> dict[str, dict[bytes, str]]:
    """Returns the docstrings by hash, in order, of each file of a library."""
    files: dict[str, dict[bytes, str]] = {}
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for name in sorted(set(names) - LEFT_OUT):
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                path = Path(where, name)
                texts = {
                    hashed(text): text for text in docstrings(path) if sum(map(str.isalpha, text)) >= FEWEST_LETTERS
                }
                files[f"{library}/{path.relative_to(folder).as_posix()}"] = texts
    return files


def _holders(version: dict[str, dict[bytes, str]]) -> dict[bytes, str]:
    """Returns the first file that has each docstring."""
    holders: dict[bytes, str] = {}
    for file, texts in sorted(version.items()):
        for digest in texts:
            holders.setdefault(digest, file)
    return holders


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def main(arguments: Sequence[str]) -> None:
    folders: dict[str, list[Path]] = {}
    for argument in arguments:
        library, equals, folder = argument.partition("=")
        if not equals or not Path(folder).is_dir():
            raise SystemExit(f"{argument!r}: give each library as NAME=FOLDER, a folder that is there")
        folders.setdefault(library, []).append(Path(folder))
    print("\n".join(lines(list(folders.items()))))


if __name__ == "__main__":
    main(sys.argv[1:])
