"""The exact tier of the regression gate: what a step costs and what training does, compared without any noise.

Counters (FLOPs, tensor bytes, operators, communication) and the loss trajectory of a fixed seed are the same numbers in
every run of the same code, so any difference is a change of the code: no statistics, no threshold, no false alarm.
Counters do not depend on the machine, only on the libraries that issue the operators; losses depend on both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from suite.guard.gate_worker import COUNTED_STEPS, SEED, Worker
from suite.measure.contender import ContenderFailed, first_line
from suite.record.files import Stored, replacing
from suite.record.job import split
from suite.record.schema import Counters, Machine, Status

SCHEMA_VERSION = 1
LIBRARIES = ("torch", "transformers", "timm")  # they decide which operators a step issues
COSTS = (
    "flops", "peak_tensor_bytes", "saved_activation_bytes", "optimizer_state_bytes", "operators", "communication_bytes",
)  # fmt: skip
MODEL = ("parameter_count", "trainable_parameter_count")

Verdict = Literal[
    "equal", "regressed", "improved", "changed", "new", "gone", "not comparable", "failed",
    "equivalent", "inconclusive", "unfit",
]  # fmt: skip


class BadReference(ValueError):
    """A stored reference that cannot be used; the message says why and what to do."""


class Item(NamedTuple):
    """What is checked: a stack on a baseline."""

    baseline: str
    recipe: str
    task: str
    stack: str

    def __str__(self) -> str:
        return f"{self.stack} on {self.baseline} ({self.recipe}, {self.task})"


class Setting(Stored):
    """What must be equal for counts to be comparable, besides the libraries."""

    size: str = "nano"
    device: str = "cpu"
    threads: int = 1
    steps: int = COUNTED_STEPS
    seed: int = SEED

    def request(self, item: Item) -> dict[str, Any]:
        """The item as the worker wants it."""
        return item._asdict() | {"size": self.size, "device": self.device, "threads": self.threads}


class Count(Stored):
    """One item's exact numbers, or how its run ended."""

    baseline: str
    recipe: str
    task: str
    stack: str
    status: Status = "ok"
    reason: str = ""
    data_sha256: str = ""
    losses: list[float] = Field(default_factory=list)
    counters: Counters | None = None

    @property
    def item(self) -> Item:
        return Item(self.baseline, self.recipe, self.task, self.stack)


class Reference(Stored):
    """A file of counts to compare later trees with."""

    schema_version: int = SCHEMA_VERSION
    leantrain: str
    made: str  # ISO 8601, UTC
    machine: Machine
    libraries: dict[str, str]
    setting: Setting
    counts: list[Count]


# counting ------------------------------------------------------------------------------------------------------------


def count(item: Item, setting: Setting, ask: Callable[..., Any]) -> Count:
    """The item's numbers, from ``ask("count", item=...)``: a Side's, or :func:`here`. Failures are rows."""
    try:
        counted = ask("count", item=setting.request(item))
    except ContenderFailed as failure:
        return Count(**item._asdict(), status=failure.status, reason=failure.reason)
    return Count(**item._asdict(), **counted)


def here(command: str, **arguments: Any) -> Any:
    """Answers as a Side does, from the code that this process has."""
    try:
        return getattr(Worker(), command)(**arguments)
    except ContenderFailed:
        raise
    except Exception as error:
        raise ContenderFailed("failed", first_line(error)) from None


def items_of(offer: Mapping[str, Any], stacks: Iterable[str], on: Iterable[str], recipes: Iterable[str]) -> list[Item]:
    """The stacks (all techniques, when none) on those of the baselines ``on`` (all) that a tree offers, with the plain
    baselines; what the tree lacks is left out, for the other side to be missed.
    """
    known, wanted, baselines = offer["techniques"], list(stacks), list(on) or offer["baselines"]
    items = []
    for recipe in recipes:
        items += [Item(name, recipe, "pretrain", "baseline") for name in baselines if name in offer["baselines"]]
        for stack in wanted or known:
            names = [name for name, _ in split(stack)]
            if not all(name in known for name in names):
                continue
            task = "adapt" if any(known[name]["task"] == "adapt" for name in names) else "pretrain"
            items += [
                Item(baseline, recipe, task, stack)
                for baseline in baselines
                if baseline in offer["baselines"] and all(baseline in known[name]["baselines"] for name in names)
            ]
    return items


# storing -------------------------------------------------------------------------------------------------------------


def reference(machine: Machine, setting: Setting, counts: Iterable[Count]) -> Reference:
    """The counts with what decides whether later ones are comparable to them."""
    return Reference(
        leantrain=version("leantrain"),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.model_copy(update={"context": {}}),
        libraries={name: version(name) for name in LIBRARIES},
        setting=setting,
        counts=list(counts),
    )


def save(stored: Reference, path: Path) -> None:
    """Writes the reference, whole or not at all."""
    try:
        with replacing(path) as partial:
            partial.write_text(stored.model_dump_json(indent=1), "utf-8")
    except OSError as error:
        raise BadReference(f"cannot write {path}: {error.strerror}; choose another file") from None


def load(path: Path) -> Reference:
    """The reference at ``path``. Raises BadReference with one sentence: unreadable, damaged, of a newer schema."""
    again = "save it again with: leantrain check --save"
    try:
        content = json.loads(path.read_text("utf-8"))
        stored = content.get("schema_version")
    except OSError as error:
        raise BadReference(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, AttributeError, RecursionError):
        raise BadReference(f"{path} is no reference: it is damaged; {again} {path}") from None
    if isinstance(stored, int) and stored > SCHEMA_VERSION:
        raise BadReference(f"{path} has schema {stored}, newer than {SCHEMA_VERSION}; update leantrain to read it")
    try:
        return Reference.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadReference(f"{path} is no reference: {where}: {first['msg']}; {again} {path}") from None


# comparing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One number that differs."""

    what: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if not isinstance(self.old, (int, float)) or not isinstance(self.new, (int, float)):
            return f"{self.what} {self.old} → {self.new}"
        relative = f" ({self.new / self.old - 1:+.2%})" if self.old else ""
        return f"{self.what} {self.old:,} → {self.new:,}{relative}"


@dataclass(frozen=True)
class Finding:
    """What the gate says of one item, and why."""

    item: str
    tier: Literal["exact", "timing"]
    verdict: Verdict
    why: str = ""
    changes: tuple[Change, ...] = field(default=())


def compare(old: Reference, new: Reference) -> list[Finding]:
    """A finding for every item of either side, in the order of the new one."""
    unlike = _incomparable(old, new)
    losses_unlike = _losses_incomparable(old, new)
    before = {each.item: each for each in old.counts}
    after = {each.item: each for each in new.counts}
    found = [_finding(before.get(item), each, unlike, losses_unlike) for item, each in after.items()]
    found += [
        Finding(str(item), "exact", "gone", "the reference has it, this tree does not")
        for item in before
        if item not in after
    ]
    return found


def _incomparable(old: Reference, new: Reference) -> str:
    """Why no number of the one side can be compared with the other's; empty when they can."""
    if old.setting != new.setting:
        pairs = zip(old.setting, new.setting, strict=True)
        differing = [f"{name} {was} instead of {now}" for (name, was), (_, now) in pairs if was != now]
        return f"counted with {', '.join(differing)}; use the same options, or save a new reference"
    differing = [
        f"{name} {old.libraries.get(name)}, this is {now}"
        for name, now in new.libraries.items()
        if old.libraries.get(name) != now
    ]
    return f"counted with {'; '.join(differing)}: operators may differ; save a new reference" if differing else ""


def _losses_incomparable(old: Reference, new: Reference) -> str:
    if old.machine.key == new.machine.key:
        return ""
    return f"losses not compared: the reference is from another machine ({old.machine.name})"


def _finding(old: Count | None, new: Count, unlike: str, losses_unlike: str) -> Finding:
    item = str(new.item)
    if new.status != "ok":
        same = old is not None and old.status == new.status
        ended = f"{new.status}: {new.reason}"
        return Finding(item, "exact", "equal" if same and new.status == "unavailable" else "failed", ended)
    if old is None:
        return Finding(item, "exact", "new", "the reference does not have it")
    if unlike:
        return Finding(item, "exact", "not comparable", unlike)
    if old.status != "ok" or old.counters is None or new.counters is None:
        return Finding(item, "exact", "not comparable", f"the reference's run ended: {old.status}: {old.reason}")
    changes = _changes(old.counters, new.counters)
    trained = () if losses_unlike else _training_changes(old, new)
    return Finding(item, "exact", _verdict(changes, trained), losses_unlike, (*changes, *trained))


def _changes(old: Counters, new: Counters) -> tuple[Change, ...]:
    flat_old, flat_new = _flat(old), _flat(new)
    return tuple(
        Change(name, flat_old.get(name, 0), flat_new.get(name, 0))
        for name in dict.fromkeys([*flat_old, *flat_new])
        if flat_old.get(name, 0) != flat_new.get(name, 0)
    )


def _flat(counters: Counters) -> dict[str, int]:
    plain = {name: getattr(counters, name) for name in (*COSTS, *MODEL)}
    kinds = {f"peak of {kind}": size for kind, size in counters.peak_by_kind.items()}
    return {name: value for name, value in (plain | kinds).items() if value is not None} | {
        f"uncounted {name}": calls for name, calls in counters.uncounted_operators.items()
    }


def _training_changes(old: Count, new: Count) -> tuple[Change, ...]:
    if old.data_sha256 != new.data_sha256:
        return (Change("data", old.data_sha256[:12], new.data_sha256[:12]),)
    if len(old.losses) != len(new.losses):
        return (Change("steps", len(old.losses), len(new.losses)),)
    for step, (was, now) in enumerate(zip(old.losses, new.losses, strict=True), 1):
        if was != now:
            return (Change(f"loss of step {step}", was, now),)
    return ()


def _verdict(changes: tuple[Change, ...], trained: tuple[Change, ...]) -> Verdict:
    """A cost that rose weighs most; then what training does; a cost that fell is good only where nothing else moved."""
    costs = [each for each in changes if each.what in COSTS]
    if any(each.new > each.old for each in costs):
        return "regressed"
    if trained or any(each.what in MODEL for each in changes):
        return "changed"
    if costs:
        return "improved"
    return "changed" if changes else "equal"


# reporting -----------------------------------------------------------------------------------------------------------


def exit_code(findings: Iterable[Finding], accept_changes: bool) -> int:
    """0 fine, 1 regressed (or changed, or gone, unless that is meant), 5 a run failed, 4 unfit, 3 not decided."""
    verdicts = {each.verdict for each in findings}
    if "regressed" in verdicts or (verdicts & {"changed", "gone"} and not accept_changes):
        return 1
    if "failed" in verdicts:
        return 5
    if "unfit" in verdicts:
        return 4
    return 3 if verdicts & {"inconclusive", "not comparable"} else 0


def markdown(findings: Iterable[Finding], against: str) -> str:
    """A job summary: what differs first, what is equal as a count."""
    found = list(findings)
    notable = [each for each in found if each.verdict not in ("equal", "equivalent") or each.tier == "timing"]
    silent = len(found) - len(notable)
    lines = [f"## leantrain check against {_cell(against)}", ""]
    if notable:
        lines += ["| what | tier | verdict | details |", "|---|---|---|---|"]
        for each in notable:
            details = "; ".join([*map(str, each.changes), *([each.why] if each.why else [])])
            lines.append(f"| {_cell(each.item)} | {each.tier} | **{each.verdict}** | {_cell(details)} |")
        lines.append("")
    if silent:
        lines.append(f"{silent} item{'s' if silent != 1 else ''} exactly equal.")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that cannot break out of a table's cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ").replace("`", "'")
