"""axe-core's rules on the page of the committed records: ``python -m tests.show.axe [PAGE] [--axe axe.min.js]``.

Research, no test: neither Chromium nor axe-core comes with the test extra. It says ``unavailable`` with the reason
where one of them is missing. The rules are tried light and dark, on a desktop and on a phone, first as the page opens
and then with everything that is folded opened. Exit code 1 where a rule is violated, 4 where it is unavailable.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite.topics.board import html
from suite.topics.board.report import Report
from tests.show.chromium import FOUND, MISSING, UNFOLDED, Chromium

SCREENS = {"desktop": (1440, 900), "phone": (390, 844)}
OPEN_ALL = UNFOLDED.replace("WITHIN ", "")
RUN = """axe.run(document, {resultTypes: ['violations']})
.then(({violations}) => JSON.stringify(violations.map(each => ({
    id: each.id, impact: each.impact, help: each.help, count: each.nodes.length,
    nodes: each.nodes.slice(0, 3).map(node => node.html.slice(0, 160) + ' | ' + (node.any[0]?.message ?? '')),
}))))"""


def axe_file(asked: Path | None) -> Path:
    """axe.min.js. Raises FileNotFoundError with the way to get it."""
    folders = [Path("node_modules")]
    if npm := shutil.which("npm"):
        done = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, timeout=60)
        folders.append(Path(done.stdout.strip()))
    places = [asked] if asked else [each / "axe-core" / "axe.min.js" for each in folders]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(f"no {' nor '.join(map(str, places))}; npm install axe-core, or name it with --axe")


def violations(page: Path, axe: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(where, its violations) for every way to look at the page."""
    with Chromium(answer_s=900) as browser:  # of tens of thousands of elements
        for screen, (width, height) in SCREENS.items():
            for dark in (False, True):
                browser.size(width, height, mobile=screen == "phone")
                browser.media(dark=dark)
                browser.open(page)
                browser.run(f"{axe}; 0")
                for state in ("as it opens", "opened"):
                    if state == "opened":
                        browser.run(OPEN_ALL)
                    where = f"{screen}, {'dark' if dark else 'light'}, {state}"
                    yield where, json.loads(browser.run(RUN))


def main() -> int:
    parser = argparse.ArgumentParser(description="axe-core's rules on a page of the leaderboard")
    parser.add_argument("page", nargs="?", type=Path, help="a page; without it that of results/ is made")
    parser.add_argument("--axe", type=Path, help="axe.min.js of the package axe-core")
    asked = parser.parse_args()
    if FOUND is None:
        print(f"unavailable: {MISSING}")
        return 4
    try:
        axe = axe_file(asked.axe).read_text("utf-8")
    except OSError as error:
        print(f"unavailable: {error}")
        return 4
    with tempfile.TemporaryDirectory() as folder:
        page = asked.page or Path(folder) / "board.html"
        if asked.page is None:
            page.write_text(html.render(Report.read(Path("results"))), "utf-8")
        violated = False
        for where, here in violations(page, axe):
            violated |= bool(here)
            print(f"{where}: {len(here)} violations", flush=True)
            for each in here:
                print(f"  {each['id']} ({each['impact']}): {each['help']}: {each['count']} times")
                print("\n".join(f"    {node}" for node in each["nodes"]), flush=True)
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
