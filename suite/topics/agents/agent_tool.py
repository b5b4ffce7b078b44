"""Describes a command as a tool: which arguments it takes, as JSON Schema, and the command line that they make.

A tool offers the options of its command by their long names, ``sequence_length`` for ``--sequence-length``. What would
write is left out, or fixed by whoever starts the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

JsonType = Literal["string", "integer", "number", "boolean"]


@dataclass(frozen=True)
class ToolParameter:
    """Describes one argument of a tool.

    Attributes:
        flag: the option that it becomes, such as ``--size``; empty for one that stands by its place.
        many: whether it is a list, each item of which repeats the option.
        default: what the command takes where it is not given; None where the command decides.
    """

    flag: str
    type: JsonType
    description: str = ""
    many: bool = False
    required: bool = False
    default: str | int | float | bool | None = None
    least: float | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Returns it as JSON Schema."""
        one: dict[str, Any] = {"type": self.type}
        if self.least is not None:
            one["minimum"] = self.least
        whole = {"type": "array", "items": one} if self.many else one
        whole |= {"description": self.description} if self.description else {}
        return whole | ({} if self.default is None else {"default": self.default})

    def words(self, value: Any) -> list[str]:
        """Returns the words that a valid value becomes, behind ``--`` where it stands by its place."""
        if self.type == "boolean":
            return [self.flag] if value else []
        values = list(map(str, value if self.many else [value]))
        return [f"{self.flag}={each}" for each in values] if self.flag else ["--", *values]


@dataclass(frozen=True)
class AgentTool:
    """Describes a tool.

    Attributes:
        command: the words that begin its command line, with the options that are fixed.
        in_json: whether the command answers in JSON; in plain text else.
        writes: whether it changes a file; a tool that does not may be called at any time.
    """

    name: str
    description: str
    command: Sequence[str]
    parameters: Mapping[str, ToolParameter] = field(default_factory=dict)
    in_json: bool = True
    writes: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """Returns the arguments that it takes as JSON Schema; it takes no others."""
        return {
            "type": "object",
            "properties": {name: parameter.schema for name, parameter in self.parameters.items()},
            "required": [name for name, parameter in self.parameters.items() if parameter.required],
            "additionalProperties": False,
        }

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the command line of a call with these arguments, which the schema accepts."""
        by_flag = sorted(values, key=lambda name: not self.parameters[name].flag)  # what stands by its place comes last
        said = [word for name in by_flag for word in self.parameters[name].words(values[name])]
        return [*self.command, *(["--json"] if self.in_json else []), *said]
