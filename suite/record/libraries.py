"""The libraries whose models are trained: they decide which operators a step issues, and what attaches to a model."""

from __future__ import annotations

from importlib.metadata import version

LIBRARIES = ("torch", "transformers", "timm")


def versions() -> dict[str, str]:
    """Theirs, without the build."""
    return {name: version(name).split("+")[0] for name in LIBRARIES}
