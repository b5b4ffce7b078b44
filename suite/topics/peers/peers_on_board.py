"""Compares techniques with other implementations: what a step takes by our code over what it takes by another
package's.

Both sides are timed in one set of processes, on the same seeds, batches and start as
:mod:`suite.topics.peers.peer_stacks` has them. Of what replaces the optimizer there are two lines: a whole training
step, which is what a user waits for, and the updates alone, in which alone the two differ. What a card names and nobody
timed says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from suite.entries.card import Card
from suite.judge.metrics import METRICS
from suite.judge.rows import Row
from suite.record.job import Spelling, is_updates_alone, package_of
from suite.record.schema import Timed
from suite.show.described import Item, Items, PageTable, Part, Section, Subheading, TableCell, TableRow
from suite.show.pages.board import change, failure_lines, leaning, machine_line, text, timings_text, unverified_text
from suite.topics.on_board import OnBoard

TITLE = "Against other implementations"
READING = (
    "The time of ours over the other package's, paired in one set of processes; below 1 ours is faster. Brackets hold "
    "95 % intervals. The updates alone are an optimizer's, with gradients that stay: at these sizes most of what they "
    "take is what Python does around the arithmetic."
)
HEAD = ("technique", "beside", "what is timed", "on", "ours over theirs", "theirs → ours", "sets of processes")
COMMAND = "leantrain run --peers"
UPDATES = 32
"""Of an optimizer, that a step of updates alone makes: :mod:`suite.entries.updates`, which needs torch."""
RUNS = re.compile(r"[a-z_]+")
"""What a card calls a package that runs as a contender; all else that it names is run by its own tests, or nobody."""
LEANS = {1: "better", -1: "worse", 0: ""}


@dataclass(frozen=True)
class PeerRow:
    """Holds a technique of ours beside a package's; ``packages``: the versions of those that were installed where it
    was timed, None of those that were not."""

    row: Row
    packages: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def technique(self) -> str:
        """Returns the one technique of both sides; of what is no such pair, its stack."""
        names = Spelling(self.row.stack).names
        return names[0] if len(names) == 1 else self.row.stack

    @property
    def package(self) -> str:
        return package_of(self.row.reference)

    @property
    def version(self) -> str:
        """Returns the package's version, where the records have it."""
        known = self.row.machine.facts.get("torch") if self.package == "torch" else self.packages.get(self.package)
        return str(known or "")

    @property
    def cells(self) -> tuple[str, ...]:
        """Returns the cells of :data:`HEAD`."""
        row, time = self.row, self.row.value("step_time")
        at = row.conditions
        return (
            self.technique,
            f"{self.package} {self.version}".strip(),
            f"{UPDATES} updates alone" if is_updates_alone(row.stack) else "training step",
            f"{at.baseline} {at.size} ({at.recipe})",
            text(time, METRICS["step_time"].direction),
            change(time, METRICS["step_time"].unit),
            timings_text(row),
        )


def apart(rows: Iterable[Row], timed: Iterable[Timed]) -> tuple[list[Row], list[PeerRow]]:
    """Parts the rows of which no side is a package's, or a part of a step alone, from those of ours beside a
    package's."""
    packages = {timing.id: timing.machine.context.get("packages") for timing in timed}
    ours, beside = list[Row](), list[PeerRow]()
    for row in rows:
        package = package_of(row.reference)
        if not (package or package_of(row.stack) or is_updates_alone(row.stack) or is_updates_alone(row.reference)):
            ours.append(row)
        elif package and not package_of(row.stack):
            known: Mapping[str, str | None] = next(
                (versions for id in reversed(row.records) if (versions := packages.get(id))), {}
            )
            beside.append(PeerRow(row, known))
    beside.sort(key=lambda peer: (peer.technique, peer.package, peer.row.conditions.key, peer.row.stack))
    return ours, beside


def missing(cards: Mapping[str, Card], peers: Sequence[PeerRow]) -> dict[str, str]:
    """Says why packages that a card names have no line here, by technique."""
    timed = {(peer.technique, peer.package) for peer in peers}
    known: dict[str, str | None] = {}
    for peer in peers:
        known |= {name: version for name, version in peer.packages.items() if version or name not in known}
    why: dict[str, str] = {}
    for id, card in sorted(cards.items()):
        runs = [name for name in card.peers if RUNS.fullmatch(name) and (id, name) not in timed]
        absent = [name for name in runs if name in known and known[name] is None]
        reasons = [f"not installed where these were timed: {', '.join(absent)}"] if absent else []
        if waiting := [name for name in runs if name not in absent]:
            reasons.append(f"not timed yet ({COMMAND} -t {id}): {', '.join(waiting)}")
        if others := [name for name in card.peers if not RUNS.fullmatch(name)]:
            reasons.append(f"no contender runs it: {', '.join(others)}")
        if reasons:
            why[id] = "; ".join(reasons)
    return why


def parts(peers: Sequence[PeerRow], cards: Mapping[str, Card]) -> list[Part]:
    """Builds the table, and lists what is not in it."""
    shown: list[Part] = []
    if peers:
        machines = list(
            dict.fromkeys(f"{peer.row.machine.name}: {machine_line(peer.row.machine.facts)}" for peer in peers)
        )
        shown = [
            PageTable("peers-table", TITLE, HEAD, list(map(_line, peers)), align="llllr"),
            Items([Item(machine) for machine in machines]),
        ]
    failed = [Item("; ".join(failure_lines(peer.row)), peer.row.reference) for peer in peers if peer.row.failures]
    shown += [Subheading("No numbers"), Items(failed)] if failed else []
    why = [Item(words, id) for id, words in missing(cards, peers).items()]
    shown += [Subheading("Named by a card, and not here"), Items(why)] if why else []
    return shown


def section(peers: Sequence[PeerRow], cards: Mapping[str, Card]) -> Section | None:
    """Shows all of it; none where nothing was timed."""
    if not peers:
        return None
    known = {peer.technique for peer in peers}
    faster = sum(leaning(peer.row.value("step_time")) > 0 for peer in peers)
    slower = sum(leaning(peer.row.value("step_time")) < 0 for peer in peers)
    words = (
        f"{len(known)} techniques beside {len({peer.package for peer in peers})} packages ({COMMAND}): ours surely "
        f"faster in {faster} of {len(peers)} lines, surely slower in {slower}."
    )
    return Section("peers", TITLE, words, parts(peers, cards), READING)


def _line(peer: PeerRow) -> TableRow:
    lean = LEANS[leaning(peer.row.value("step_time"))]
    mark = "†" if unverified_text(peer.row) else ""
    head, *cells = peer.cells
    drawn = [TableCell(head, code=True, head=True, mark=mark)]
    ratio = peer.row.value("step_time").number
    drawn += [
        TableCell(words, f"{ratio:.6g}" if name == HEAD[4] else None, lean if name == HEAD[4] else "")
        for name, words in zip(HEAD[1:], cells, strict=True)
    ]
    return TableRow(drawn)


ON_BOARD = OnBoard(70, lambda report: section(report.peers, report.cards), "other implementations")
