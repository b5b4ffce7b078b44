"""The page in a real browser: what no parser can show. Skipped, saying so, where there is no Chromium."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from suite.contract.sources import Sources
from suite.judge.claims import ClaimPlace, judge
from suite.judge.rows import pairs
from suite.show.html import render
from suite.show.report import Report
from suite.show.studies import Studied
from tests.factories import between, claim, comparison, conditions, contender, counters, failure, record
from tests.measure.test_study import study
from tests.show.chromium import FOUND, MISSING, Chromium
from tests.show.test_html import EVIL, evil_card, evil_page

pytestmark = pytest.mark.skipif(FOUND is None, reason=MISSING)


@pytest.fixture(scope="module")
def browser():
    with Chromium() as opened:
        yield opened


@pytest.fixture
def silent(browser):
    """The browser, on whose console a test must leave nothing, and that may ask for nothing but the page."""
    yield browser
    assert browser.console == []
    assert [each for each in browser.requests if not each.startswith(("file:", "blob:"))] == []
    assert len(browser.requests) == 1


def small_page() -> str:
    made = []
    for baseline in ("gpt", "vit"):
        for stack, pace_s in (("fast", 0.01), ("slow", 0.04), ("same", 0.02)):
            made += [
                each.model_copy(update={"conditions": conditions(baseline=baseline)})
                for each in comparison(stack, pace_s=pace_s, counters=counters(peak_tensor_bytes=int(pace_s * 2**27)))
            ]
    made.append(record([contender(), failure("broken", "crashed", "no reason")], 9))
    cards = {name: evil_card().model_copy(update={"id": name, "category": f"{name}_ones"}) for name in ("fast", "slow")}
    judged = [judge(claim(), "fast", between(0.4, 0.6), ClaimPlace("gpt"))]
    studies = [Studied(study()), Studied(study("fast"), ("fast changed",))]
    rows = pairs(made, Sources("h" * 64, {"gpt": "b" * 64}, {}))
    return render(Report(rows, verdicts=judged, cards=cards, studies=studies))


@pytest.fixture
def shown(silent, tmp_path):
    page = tmp_path / "board.html"
    page.write_text(small_page(), "utf-8")
    silent.open(page)
    return silent


BOARD = "document.querySelector('section.board')"
NAMES = f"[...{BOARD}.querySelectorAll('tbody tr')].map(row => row.cells[1].dataset.sort)"
VISIBLE = "[...document.querySelectorAll('section.board')].filter(each => each.checkVisibility()).length"


def column(title: str) -> str:
    return f"[...{BOARD}.querySelectorAll('thead button')].find(each => each.textContent.startsWith('{title}'))"


def choose(browser, name: str, value: str) -> None:
    found = f"document.querySelector('select[data-filter={name}]')"
    browser.run(f"{found}.value = '{value}'; {found}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_a_click_sorts_and_a_second_one_turns_the_order(shown):
    shown.run(f"{column('step time')}.click()")
    assert shown.run(NAMES) == ["fast", "same", "slow"]
    assert shown.run(f"{column('step time')}.closest('th').ariaSort") == "ascending"
    shown.run(f"{column('step time')}.click()")
    assert shown.run(NAMES) == ["slow", "same", "fast"]
    assert shown.run(f"{BOARD}.querySelectorAll('th[aria-sort]').length") == 1


def test_the_keyboard_alone_reaches_every_control_in_order_and_sorts(shown):
    here = "document.activeElement"
    focused = f"{here}.closest('form') ? {here}.id || {here}.dataset.filter : {here}.textContent"
    order = []
    shown.run("document.querySelector('nav a').focus()")
    for _ in range(60):
        shown.press("Tab")
        order.append(shown.run(focused))
        if order[-1].startswith("step time"):
            break
    assert order[order.index("filter") :][:6] == ["filter", "baseline", "category", "fresh", "csv", "json"]
    assert order[-1].startswith("step time")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert shown.run(outline) == "solid"  # one sees where one is
    shown.press("Enter")
    assert shown.run("document.activeElement.closest('th').ariaSort") == "ascending"
    shown.press("Enter")
    assert shown.run("document.activeElement.closest('th').ariaSort") == "descending"


def test_filters_leave_what_was_asked_for_and_count_it(shown):
    assert shown.run(VISIBLE) == 2
    choose(shown, "baseline", "vit")
    assert shown.run(VISIBLE) == 1
    assert shown.run("document.getElementById('count').textContent") == "3 of 7 rows"
    choose(shown, "category", "fast_ones")
    left = """[...document.querySelectorAll('section.board tbody tr')].filter(each => each.checkVisibility())
        .map(each => each.dataset.name)"""
    assert shown.run(left) == ["fast"]
    assert shown.run("[...document.querySelectorAll('article')].filter(e => e.checkVisibility()).length") == 1
    choose(shown, "baseline", "")
    assert shown.run(left) == ["fast", "fast"]
    shown.run("document.getElementById('fresh').click()")
    assert shown.run(VISIBLE) == 0  # all are stale


def test_every_link_leads_to_something_that_then_can_be_seen(shown):
    lost = """[...document.querySelectorAll('a[href]')].map(each => each.getAttribute('href'))
        .filter(href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""
    assert shown.run(lost) == []
    choose(shown, "category", "fast_ones")
    shown.run("location.hash = document.querySelector('article[data-name=slow]').id")
    shown.run("new Promise(done => setTimeout(done, 50))")
    assert shown.run("document.querySelector(location.hash).checkVisibility()")


def test_a_point_of_the_plot_can_be_followed(shown):
    shown.run(f"{BOARD}.querySelectorAll('details').forEach(each => each.open = true)")
    shown.run("""[...document.querySelectorAll('svg.pareto a')].find(each => each.ariaLabel.startsWith('fast'))
        .dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))""")
    assert shown.run("document.querySelector(location.hash).dataset.name") == "fast"


def test_a_study_has_its_plot_and_its_tables_and_is_filtered_with_its_technique(shown):
    shown.run("document.querySelector('nav a[href=\"#studies\"]').click()")
    plot = "document.querySelector('#studies svg[role=img]')"
    assert shown.run(f"{plot}.getBoundingClientRect().width") > 300
    assert shown.run(f"{plot}.textContent.includes('batch size (examples)')")
    page = "getComputedStyle(document.body).color"
    assert shown.run(f"getComputedStyle({plot}.querySelector('text')).fill === {page}")  # in the dark, too
    shown.run("document.querySelector('#studies details').open = true")
    assert shown.run("document.querySelector('#studies caption').checkVisibility()")
    first = "document.querySelector('#studies tbody td').textContent"
    shown.run("document.querySelector('#studies thead button').click()")
    assert shown.run(first) == "32"
    shown.run("document.querySelector('#studies thead button').click()")
    assert shown.run(first) == "512"
    visible = (
        "[...document.querySelectorAll('#studies article')].filter(e => e.checkVisibility()).map(e => e.dataset.name)"
    )
    choose(shown, "category", "fast_ones")
    assert shown.run(visible) == ["fast"]
    shown.run("document.getElementById('fresh').click()")
    assert shown.run(visible) == []


def test_nothing_that_a_record_says_becomes_markup_or_runs(silent, tmp_path):
    page = tmp_path / "board.html"
    page.write_text(evil_page(), "utf-8")
    silent.open(page)
    assert silent.run("document.querySelectorAll('img, iframe, section script, header script, [onerror]').length") == 0
    assert silent.run(f"document.body.innerText.includes({json.dumps(EVIL.split('<!--')[0].strip())})")
    assert silent.run("JSON.parse(document.getElementById('data').textContent).length") == 4


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (390, False)])
def test_the_page_itself_never_scrolls_sideways_and_its_words_stand_out(shown, width, dark):
    shown.size(width, 900, mobile=width < 500)
    shown.media(dark=dark)
    shown.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert shown.run("document.documentElement.scrollWidth") <= width
    contrast = """(() => {
        const light = (name) => {
            const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1)
                .match(/../g).map(each => parseInt(each, 16) / 255)
                .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        return ['--text', '--faint', '--technique', '--worse', '--exact'].map((name) => {
            const [a, b] = [light(name), light('--page')].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        });
    })()"""
    assert min(shown.run(contrast)) >= 4.5  # WCAG 2.2, 1.4.3


def test_ten_thousand_records_make_a_page_that_is_whole_and_usable(silent, tmp_path, capsys):
    """Rows of three seeds each. The times are printed, not judged."""
    start_s = time.process_time()
    (one,) = pairs(comparison("x"))  # its analysis stands for all: what is judged here is the page
    rows = [
        replace(one, stack=f"stack_{number}", conditions=conditions(baseline=baseline, recipe=recipe))
        for baseline in ("bert", "gpt", "mae", "vit")
        for recipe in ("classic", "modern")
        for number in range(417)
    ]
    assert sum(len(row.records) for row in rows) == 10_008
    page: Path = tmp_path / "board.html"
    page.write_text(render(Report(rows)), "utf-8")
    made_s = time.process_time() - start_s
    shown_s = silent.open(page)
    assert silent.run("document.querySelectorAll('section.board tbody tr').length") == len(rows)
    silent.run(f"{column('step time')}.click()")
    choose(silent, "baseline", "vit")
    assert silent.run("document.getElementById('count').textContent") == f"834 of {len(rows)} rows"
    assert page.stat().st_size < 40e6
    with capsys.disabled():
        print(f" [{made_s:.1f} s to write, {shown_s:.1f} s to open, {page.stat().st_size / 1e6:.0f} MB]", end="")
