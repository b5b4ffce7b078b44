"""Makes drawings: marks in pixels, styled by name; as SVG in a page and as files that a paper prints, the same either
way.

An SVG follows its reader's light or dark by the variables of :data:`COLOURS`, which are the page's, too. PDF and PNG
are painted in the light ones, by matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite.record.files import replacing
from suite.record.text import in_html

COLOURS: dict[str, tuple[str, str]] = {
    "text": ("#1b1f24", "#e6e9ed"),
    "faint": ("#5b6470", "#a3adb8"),
    "line": ("#d5dae0", "#39414b"),
    "page": ("#ffffff", "#14181d"),
    "raised": ("#f5f7f9", "#1e242b"),
    "technique": ("#0b5cad", "#74b6ff"),
    "reference": ("#737c88", "#98a2ae"),
    "better": ("#146c43", "#6fd3a0"),
    "worse": ("#a84300", "#ff9f5a"),
}
"""(on a light page, on a dark one)."""

Point = tuple[float, float]
Property = str | float

STYLES: dict[str, dict[str, Property]] = {
    "axis": {"stroke": "faint", "width": 1.0},
    "grid": {"stroke": "line", "width": 0.75},
    "one": {"stroke": "faint", "width": 1.25},
    "dot": {"fill": "ink"},
    "open": {"fill": "page", "stroke": "ink", "width": 1.5},
    "seed": {"fill": "reference"},
    "span": {"stroke": "ink", "width": 2.0},
    "mean": {"stroke": "ink", "width": 2.0},
    "each": {"stroke": "ink", "width": 0.75, "opacity": 0.5},
    "dashed": {"dash": "4 3"},
    "band": {"fill": "ink", "opacity": 0.2},
    "ring": {"stroke": "text", "width": 1.25},
    "lead": {"stroke": "faint", "width": 0.75},
    "tick": {"fill": "text", "size": 12.0},
    "name": {"fill": "text", "size": 12.0},
    "number": {"fill": "ink", "size": 12.0},
    "head": {"fill": "text", "size": 13.0, "weight": "bold"},
    "same": {"ink": "text"},
    "reference": {"ink": "reference"},
    "technique": {"ink": "technique"},
    "better": {"ink": "better"},
    "worse": {"ink": "worse"},
}
"""What each style sets: colours by their names, ``ink`` for that of the mark, ``none`` by default; widths and sizes in
pixels. A mark may have several; of two that set the same the later in this table holds, as in a style sheet."""


def colours_css(selector: str = ":root") -> str:
    """Writes the colours as variables, of a light page and of a dark one."""

    def variables(column: int) -> str:
        return " ".join(f"--{name}: {pair[column]};" for name, pair in COLOURS.items())

    return (
        f"{selector} {{ {variables(0)} }}\n@media (prefers-color-scheme: dark) {{ {selector} {{ {variables(1)} }} }}\n"
    )


def charts_css() -> str:
    """Writes the styles as rules of elements with class ``chart``."""
    of = {
        "ink": lambda value: f"color: var(--{value})",
        "fill": lambda value: f"fill: {_paint(value)}",
        "stroke": lambda value: f"stroke: {_paint(value)}",
        "width": lambda value: f"stroke-width: {value:g}",
        "dash": lambda value: f"stroke-dasharray: {value}",
        "opacity": lambda value: f"opacity: {value:g}",
        "size": lambda value: f"font-size: {value:g}px",
        "weight": lambda value: f"font-weight: {value}",
    }
    rules = [
        f".chart .{name} {{ {'; '.join(of[what](value) for what, value in style.items())} }}"
        for name, style in STYLES.items()
    ]
    return "\n".join(
        [
            ".chart { color: var(--text); font-family: system-ui, sans-serif; }",
            ".chart path, .chart circle { fill: none; }",
            ".chart text { paint-order: stroke; stroke: var(--page); stroke-width: 3px; stroke-linejoin: round; }",
            *rules,
            "",
        ]
    )


def _paint(colour: Property) -> str:
    return "currentColor" if colour == "ink" else f"var(--{colour})"


# marks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Draws a line through points, or with ``closed`` the area inside; ``kind`` names its styles, separated by
    spaces."""

    kind: str
    points: Sequence[Point]
    closed: bool = False

    def moved(self, dx: float, dy: float) -> Line:
        return replace(self, points=[(x + dx, y + dy) for x, y in self.points])

    def svg(self) -> str:
        places = "L".join(f"{x:.1f} {y:.1f}".replace(".0", "") for x, y in self.points)
        return f'<path class="{self.kind}" d="M{places}{"Z" if self.closed else ""}"/>'


@dataclass(frozen=True)
class Dot:
    kind: str
    x: float
    y: float
    r: float

    def moved(self, dx: float, dy: float) -> Dot:
        return replace(self, x=self.x + dx, y=self.y + dy)

    def svg(self) -> str:
        return f'<circle class="{self.kind}" cx="{self.x:.1f}" cy="{self.y:.1f}" r="{self.r:g}"/>'


@dataclass(frozen=True)
class Words:
    """Draws text on a baseline; ``anchor``: start, middle or end; ``upright``: read from below to above."""

    x: float
    y: float
    words: str
    anchor: str = "start"
    kind: str = "tick"
    upright: bool = False

    def moved(self, dx: float, dy: float) -> Words:
        return replace(self, x=self.x + dx, y=self.y + dy)

    def svg(self) -> str:
        place = f'x="{self.x:.1f}" y="{self.y:.1f}"'
        if self.upright:
            place = f'transform="translate({self.x:.1f} {self.y:.1f}) rotate(-90)"'
        return f'<text class="{self.kind}" {place} text-anchor="{self.anchor}">{in_html(self.words)}</text>'


@dataclass(frozen=True)
class MarkGroup:
    """Marks that say something to a pointer, and lead to ``target`` where the page has that anchor."""

    marks: Sequence[Mark]
    says: str
    target: str = ""

    def moved(self, dx: float, dy: float) -> MarkGroup:
        return replace(self, marks=[mark.moved(dx, dy) for mark in self.marks])

    def svg(self) -> str:
        title = f"<title>{in_html(self.says)}</title>" if self.says else ""
        drawn = f"<g>{title}{''.join(mark.svg() for mark in self.marks)}</g>"
        if not self.target:
            return drawn
        return f'<a href="#{in_html(self.target)}">{drawn}</a>'


@dataclass(frozen=True)
class Shared:
    """Marks that several drawings of a page have in common: each refers to those of the page's :func:`definitions`."""

    anchor: str
    marks: Sequence[Mark]

    def moved(self, dx: float, dy: float) -> MarkGroup:
        return MarkGroup([mark.moved(dx, dy) for mark in self.marks], "")

    def svg(self) -> str:
        return f'<use href="#{in_html(self.anchor)}"/>'


Mark = Line | Dot | Words | MarkGroup | Shared


def definitions(shared: Iterable[Shared]) -> str:
    """Writes an element of a page that shows nothing, and has what its drawings share."""
    groups = "".join(
        f'<g class="chart" id="{in_html(group.anchor)}">{"".join(mark.svg() for mark in group.marks)}</g>'
        for group in shared
    )
    return f'<svg class="chart shared" aria-hidden="true"><defs>{groups}</defs></svg>' if groups else ""


@dataclass(frozen=True)
class Drawing:
    """Marks on ``width`` by ``height`` pixels. ``kind``: its class on a page, ``label``: what it shows, in words."""

    width: float
    height: float
    marks: Sequence[Mark]
    label: str = ""
    kind: str = ""

    def svg(self) -> str:
        """Writes it as an element of a page."""
        links = any(isinstance(mark, MarkGroup) and mark.target for mark in self.marks)
        role = "group" if links else "img"  # an image's links could not be reached by a screen reader
        return (
            f'<svg class="chart {self.kind}" viewBox="0 0 {self.width:g} {self.height:g}" role="{role}" '
            f'aria-label="{in_html(self.label)}">{"".join(mark.svg() for mark in self.marks)}</svg>'
        )

    def file(self) -> str:
        """Writes it as an SVG file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" aria-label="{in_html(self.label)}">'
            f"<style>{colours_css('svg')}{charts_css()}</style>"
            f'<rect width="100%" height="100%" style="fill: var(--page)"/>'
            f"{''.join(mark.svg() for mark in _standing_alone(self.marks))}</svg>\n"
        )


def _standing_alone(marks: Iterable[Mark]) -> Iterator[Mark]:
    """Writes the marks without references to a page."""
    for mark in marks:
        if isinstance(mark, Shared):
            yield from mark.marks
        else:
            yield replace(mark, target="") if isinstance(mark, MarkGroup) else mark


def in_columns(panels: Sequence[Drawing], columns: int, title: str = "", gap: float = 24) -> Drawing:
    """Puts the panels into one drawing, row by row."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    marks: list[Mark] = [Words(8, 20, title, kind="head")] if title else []
    y, width = 34.0 if title else 0.0, 0.0
    for row in rows:
        x = 0.0
        for panel in row:
            marks += [mark.moved(x, y) for mark in panel.marks]
            x += panel.width + gap
        width = max(width, x - gap)
        y += max(panel.height for panel in row) + gap
    return Drawing(width, y - gap, marks, "; ".join(panel.label for panel in panels))


# files --------------------------------------------------------------------------------------------------------------

FORMATS = (".svg", ".pdf", ".png")


def check_format(path: Path) -> None:
    """Raises ValueError, before minutes are spent, for a suffix that is no format of a drawing."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a picture's suffix says its format: {', '.join(FORMATS)}")


def save(drawing: Drawing, path: Path) -> None:
    """Writes a drawing, whole or not at all, in the format of the suffix. Raises ValueError for an unknown one."""
    check_format(path)
    with replacing(path) as partial:
        if path.suffix.lower() == ".svg":
            partial.write_text(drawing.file(), "utf-8")
        else:
            _painted(drawing).savefig(partial, dpi=192, format=path.suffix[1:].lower(), metadata=_undated(path))


def _undated(path: Path) -> dict[str, Any]:
    """Returns metadata with which equal drawings are equal files."""
    return {"CreationDate": None} if path.suffix.lower() == ".pdf" else {}


PIXEL_POINTS = 0.75


def _painted(drawing: Drawing) -> Any:
    """Returns a matplotlib figure of the drawing."""
    from matplotlib.figure import Figure  # a page without files does not need it

    figure = Figure(figsize=(drawing.width / 96, drawing.height / 96))  # no pyplot: no window, no globals
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.axis("off")
    for order, mark in enumerate(_flat(drawing.marks)):
        _paint_mark(axes, mark, order)
    return figure


def _flat(marks: Iterable[Mark]) -> Iterator[Line | Dot | Words]:
    for mark in marks:
        if isinstance(mark, MarkGroup | Shared):
            yield from _flat(mark.marks)
        else:
            yield mark


@dataclass(frozen=True)
class _Look:
    """Holds a mark's styles together, in light colours."""

    fill: str = "none"
    stroke: str = "none"
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str) -> _Look:
        values: dict[str, Any] = {}
        for name, style in STYLES.items():
            values |= style if name in kind.split() else {}
        ink = values.get("ink", "text")

        def colour(what: str) -> str:
            name = values.get(what, "none")
            return "none" if name == "none" else COLOURS[ink if name == "ink" else name][0]

        return cls(colour("fill"), colour("stroke"), values)


def _paint_mark(axes: Any, mark: Line | Dot | Words, order: int) -> None:
    from matplotlib.patches import Circle, PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.patheffects import withStroke

    look = _Look.of(mark.kind)
    if isinstance(mark, Words):
        axes.text(
            mark.x,
            mark.y,
            mark.words,
            ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
            va="baseline",
            rotation=90 if mark.upright else 0,
            rotation_mode="anchor",
            color=look.fill,
            zorder=order,
            fontsize=look.values.get("size", 12) * PIXEL_POINTS,
            fontweight=look.values.get("weight", "normal"),
            parse_math=False,
            path_effects=[withStroke(linewidth=2.5, foreground=COLOURS["page"][0])],
        )
        return
    shared = {
        "facecolor": look.fill,
        "edgecolor": look.stroke,
        "linewidth": look.values.get("width", 1.0) * PIXEL_POINTS,
        "alpha": look.values.get("opacity"),
        "zorder": order,
    }
    if "dash" in look.values:
        shared["linestyle"] = (0, [float(part) for part in str(look.values["dash"]).split()])
    if isinstance(mark, Dot):
        axes.add_patch(Circle((mark.x, mark.y), mark.r, **shared))
    else:
        points = [*mark.points, mark.points[0]] if mark.closed else mark.points
        axes.add_patch(PathPatch(Outline(points, closed=mark.closed), **shared))
