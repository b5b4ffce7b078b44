"""Makes a checkout run without being installed: ``python -m suite.record.uninstalled FOLDER``.

A machine without a network has torch and a Python, and perhaps neither pip nor setuptools. What an installation adds to
the files is metadata, where entry points are found; they are written to FOLDER from ``pyproject.toml``. With the
checkout and FOLDER on ``PYTHONPATH``, ``python -m suite.cli`` is the command.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_metadata(folder: Path, root: Path = ROOT) -> Path:
    """Writes the checkout's metadata into a folder below ``folder``, which it returns. Raises OSError where it cannot
    be written."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in groups.items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(lines) + "\n", "utf-8")
    return metadata


if __name__ == "__main__":
    print(write_metadata(Path(sys.argv[1])))
