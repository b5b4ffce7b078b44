"""Finds the files of installed packages and modules, without importing any of them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

OURS = __name__.removesuffix("suite.entries.module_files")
"""What stands before the names of our packages: nothing in a checkout, ``leantrain.`` in an installed wheel."""


def package_folder(package: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    return Path(next(iter(find_spec(package).submodule_search_locations)))  # type: ignore[union-attr,arg-type]


def package_of(module: str) -> str:
    """Returns the package that a module belongs to: ``suite`` of ``suite.loop.run``."""
    top = module.removeprefix(OURS).partition(".")[0]
    return OURS + top if module.startswith(OURS) else top


def file_of(module: str) -> Path | None:
    """Returns the file of a module, by its dotted name; None where none is installed."""
    top, *rest = module.split(".")
    package = _top(top)
    if package is None or package.is_file():
        return None if rest else package
    path = package.joinpath(*rest)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _top(name: str) -> Path | None:
    """Returns the folder of a package, the file of a module; None where neither is installed."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        return package_folder(name)
    return Path(spec.origin) if spec and spec.origin else None
