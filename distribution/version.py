"""``python distribution/version.py [TAG]``: whether all that names the version names one, and the tag is that.

Raises SystemExit with a sentence for what differs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """Returns the version of each file that has one; of the changelog its newest release's."""
    changes = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    conda = re.search(r'^  version: "(\S+)"$', (ROOT / "distribution/recipe.yaml").read_text("utf-8"), re.MULTILINE)
    return {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"],
        "CITATION.cff": cited[1] if cited else "none",
        "distribution/recipe.yaml": conda[1] if conda else "none",
        "CHANGELOG.md": changes[0] if changes else "none",
    }


def main() -> None:
    own = versions()
    if len(sys.argv) > 1:
        own["the tag"] = sys.argv[1].removeprefix("v")
    if len({*own.values()}) > 1:
        raise SystemExit("the versions differ: " + ", ".join(f"{name} has {one}" for name, one in own.items()))
    print(own["pyproject.toml"])


if __name__ == "__main__":
    main()
