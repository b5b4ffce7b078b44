"""The page in a real browser: what no parser can show. Skipped, saying so, where there is no Chromium."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from suite.judge.claims import VerdictBasis, judge
from suite.topics.board import which_page
from suite.topics.board.html import render
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing
from suite.topics.studies.studies_on_board import Studied
from tests.factories import between, claim, conditions, row
from tests.show.chromium import FOUND, MISSING, UNFOLDED, Chromium
from tests.show.samples import EVIL, card, failing, lean, on, shown, study, whole
from tests.topics.board.test_html import evil_packed_page

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
    lines = [
        *lean("fast", 2**20, pace_s=0.01),
        *lean("slow", 2**23, pace_s=0.04),
        *lean("same", 2**22),
    ]
    rows = shown(
        lines, on(lines, baseline="vit"), failing("broken", "crashed", "no reason"), changed=("fast", "broken")
    )
    cards = {name: card(name, f"{name}_ones") for name in ("fast", "slow")}
    judged = [judge(claim(read="Table 1"), "fast", between(0.4, 0.6), VerdictBasis("gpt"))]
    studies = [Studied(study()), Studied(study("fast"), unverified=True)]
    return render(Report(rows, verdicts=judged, cards=cards, studies=studies))


def open_all(browser, within: str = "") -> None:
    """Opens what is folded, and waits until what was packed in it is there."""
    browser.run(UNFOLDED.replace("WITHIN", within))


@pytest.fixture
def board(silent, tmp_path):
    page = tmp_path / "board.html"
    page.write_text(small_page(), "utf-8")
    silent.open(page)
    open_all(silent, "section.board")
    return silent


BOARD = "document.querySelector('section.board')"
NAMES = f"[...{BOARD}.querySelectorAll('tbody tr')].map(row => row.cells[1].dataset.sort)"
VISIBLE = "[...document.querySelectorAll('section.board')].filter(each => each.checkVisibility()).length"


def column(title: str) -> str:
    return f"[...{BOARD}.querySelectorAll('thead button')].find(each => each.textContent.startsWith('{title}'))"


SOON = "new Promise(done => setTimeout(done, 50))"


def choose(browser, name: str, value: str) -> None:
    found = f"document.querySelector('select[data-filter={name}]')"
    browser.run(f"{found}.value = '{value}'; {found}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_a_click_sorts_and_a_second_one_turns_the_order(board):
    board.run(f"{column('step time')}.click()")
    assert board.run(NAMES) == ["fast", "same", "slow"]
    assert board.run(f"{column('step time')}.closest('th').ariaSort") == "ascending"
    board.run(f"{column('step time')}.click()")
    assert board.run(NAMES) == ["slow", "same", "fast"]
    assert board.run(f"{BOARD}.querySelectorAll('th[aria-sort]').length") == 1


def test_the_keyboard_alone_reaches_every_control_in_order_and_sorts(board):
    here = "document.activeElement"
    focused = f"{here}.closest('form') ? {here}.id || {here}.dataset.filter : {here}.textContent"
    order = []
    for _ in range(90):
        board.press("Tab")
        order.append(board.run(focused))
        if order[-1].startswith("step time"):
            break
    assert order[order.index("filter") :][:6] == ["filter", "baseline", "category", "fresh", "csv", "json"]
    assert order[-1].startswith("step time")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert board.run(outline) == "solid"  # one sees where one is
    board.press("Enter")
    assert board.run("document.activeElement.closest('th').ariaSort") == "ascending"
    board.press("Enter")
    assert board.run("document.activeElement.closest('th').ariaSort") == "descending"


def test_filters_leave_what_was_asked_for_and_count_it(board):
    assert board.run(VISIBLE) == 2
    choose(board, "baseline", "vit")
    assert board.run(VISIBLE) == 1
    assert board.run("document.getElementById('count').textContent") == "3 of 7 rows"
    choose(board, "category", "fast_ones")
    left = """[...document.querySelectorAll('section.board tbody tr')].filter(each => each.checkVisibility())
        .map(each => each.dataset.name)"""
    assert board.run(left) == ["fast"]
    assert board.run("[...document.querySelectorAll('.technique')].filter(e => e.checkVisibility()).length") == 1
    choose(board, "baseline", "")
    assert board.run(left) == ["fast", "fast"]
    board.run("document.getElementById('fresh').click()")
    assert board.run(VISIBLE) == 0  # it is unverified on both


LINES = """[...document.querySelectorAll('section.goal tr[data-name]')].filter(each => each.checkVisibility())
    .map(each => each.dataset.name)"""


def test_a_name_leaves_its_lines_of_the_goals_tables(board):
    every = board.run(LINES)
    assert {"fast", "slow", "same"} <= set(every)
    found = "document.getElementById('find')"
    board.run(f"{found}.value = 'slo'; {found}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    assert board.run(LINES) == ["slow"]
    board.run(f"{found}.value = ''; {found}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    assert board.run(LINES) == every


def test_filters_live_in_the_address(board):
    choose(board, "baseline", "vit")
    assert board.run("location.search") == "?baseline=vit"
    board.run("document.querySelectorAll('select').forEach(each => each.value = ''); recall(); filterPage()")
    assert board.run("document.querySelector('select[data-filter=baseline]').value") == "vit"


def test_the_best_stands_first_at_the_first_click(board):
    heads = "document.querySelector('section.goal thead')"
    board.run(f"[...{heads}.querySelectorAll('button')].find(e => e.textContent == 'technique').click()")
    assert board.run(LINES) == sorted(board.run(LINES))
    board.run(f"{column('step time')}.click()")
    assert board.run(NAMES)[0] == "fast"


@pytest.mark.parametrize(("width", "height", "least"), [(1440, 900, 3), (390, 844, 3)])
def test_the_findings_are_on_the_first_screen(board, width, height, least):
    board.size(width, height, mobile=width < 500)
    shown = """[...document.querySelectorAll('.findings li')]
        .filter(each => each.getBoundingClientRect().bottom <= innerHeight).length"""
    assert board.run(shown) >= least
    assert board.run("document.documentElement.scrollWidth <= innerWidth")


def test_every_link_leads_to_something_that_then_can_be_seen(board):
    open_all(board)
    lost = """[...document.querySelectorAll('a[href]')].map(each => each.getAttribute('href'))
        .filter(href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""
    assert board.run(lost) == []
    choose(board, "category", "fast_ones")
    board.run("location.hash = document.querySelector('.technique[data-name=slow]').id")
    board.run(SOON)
    assert board.run("document.querySelector(location.hash).checkVisibility()")


def test_a_link_into_what_is_packed_unpacks_it_and_nothing_else(silent, tmp_path):
    (tmp_path / "board.html").write_text(small_page(), "utf-8")
    silent.open(tmp_path / "board.html")
    assert silent.run("document.querySelectorAll('section.board tr').length") == 0
    packed = silent.run("document.querySelectorAll('.packed').length")
    row = silent.run('packedParts().then(all => all.join(\'\').match(/<tr id="(vit[^"]*-slow)"/)[1])')
    silent.run(f"location.hash = '{row}'")
    silent.run(SOON)
    assert silent.run(f"document.getElementById('{row}').checkVisibility()")
    assert silent.run("document.querySelectorAll('.packed').length") == packed - 1
    silent.run("location.hash = document.querySelector('.technique[data-name=same]').id")
    silent.run(SOON)
    assert silent.run("document.querySelector('.technique[data-name=same] article').checkVisibility()")


def test_a_part_is_filtered_as_the_page_is_when_it_is_opened(silent, tmp_path):
    (tmp_path / "board.html").write_text(small_page(), "utf-8")
    silent.open(tmp_path / "board.html")
    choose(silent, "category", "fast_ones")
    assert silent.run("document.getElementById('count').textContent") == "2 of 7 rows"
    open_all(silent, "section.board")
    left = """[...document.querySelectorAll('section.board tbody tr')].filter(e => e.checkVisibility())
        .map(e => e.dataset.name)"""
    assert silent.run(left) == ["fast", "fast"]


def test_without_the_script_findings_and_tables_are_read(silent, tmp_path):
    """As a browser shows it that runs no script: what is folded says why it is empty."""
    (tmp_path / "board.html").write_text(small_page().replace("script-src 'sha256-", "script-src 'sha256-A"), "utf-8")
    silent.open(tmp_path / "board.html")
    silent.console.clear()  # the policy's complaint
    words = silent.run("document.body.innerText")
    assert "What the records show" in words and "costs" in words and "Learning curves" not in words
    silent.run("document.querySelector('.technique').open = true")
    silent.run(SOON)
    assert "This part is packed" in silent.run("document.body.innerText")


def test_a_name_in_a_goal_s_table_opens_its_technique_s_section(board):
    assert not board.run("document.querySelector('.technique[data-name=slow]').open")
    board.run("document.querySelector('section.goal tr[data-name=slow] th a').click()")
    board.run(SOON)
    assert board.run("document.querySelector('.technique[data-name=slow] .numbers').checkVisibility()")
    assert not board.run("document.querySelector('.technique[data-name=fast]').open")


def test_boards_of_one_recipe_are_shown_until_another_or_all_are_chosen(silent, tmp_path):
    lines = [*lean("fast", 2**20, pace_s=0.01), *lean("slow", 2**23, pace_s=0.04)]
    rows = shown(lines, on(lines, recipe="classic"), failing("broken", "crashed", "no reason"))
    (tmp_path / "board.html").write_text(render(Report(rows)), "utf-8")
    silent.open(tmp_path / "board.html")
    boards = (
        "[...document.querySelectorAll('section.board')].filter(e => e.checkVisibility()).map(e => e.dataset.recipe)"
    )
    assert silent.run(boards) == ["modern"]
    choose(silent, "recipe", "classic")
    assert silent.run(boards) == ["classic"] and silent.run("location.search") == "?recipe=classic"
    choose(silent, "recipe", "")
    assert sorted(silent.run(boards)) == ["classic", "modern"] and silent.run("location.search") == "?recipe=all"


@pytest.mark.parametrize("plot", ["pareto", "ruler"])
def test_a_point_of_a_plot_can_be_followed(board, plot):
    open_all(board, "section.board")
    board.run(f"""[...document.querySelectorAll('svg.{plot} a')]
        .find(each => each.querySelector('title').textContent.startsWith('fast'))
        .dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}))""")
    assert board.run("document.querySelector(location.hash).dataset.name") == "fast"


def test_a_study_has_its_plot_and_its_tables_and_is_filtered_with_its_technique(board):
    board.run("document.querySelector('nav a[href=\"#studies\"]').click()")
    board.run(SOON)
    plot = "document.querySelector('#studies svg[role=img]')"
    assert board.run(f"{plot}.getBoundingClientRect().width") > 300
    assert board.run(f"{plot}.textContent.includes('batch size (examples)')")
    page = "getComputedStyle(document.body).color"
    assert board.run(f"getComputedStyle({plot}.querySelector('text')).fill === {page}")  # in the dark, too
    board.run("document.querySelector('#studies article details').open = true")
    assert board.run("document.querySelector('#studies caption').checkVisibility()")
    first = "document.querySelector('#studies tbody td').textContent"
    board.run("document.querySelector('#studies thead button').click()")
    assert board.run(first) == "32"
    board.run("document.querySelector('#studies thead button').click()")
    assert board.run(first) == "512"
    visible = (
        "[...document.querySelectorAll('#studies article')].filter(e => e.checkVisibility()).map(e => e.dataset.name)"
    )
    choose(board, "category", "fast_ones")
    assert board.run(visible) == ["fast"]
    board.run("document.getElementById('fresh').click()")
    assert board.run(visible) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_an_address_that_names_a_study_opens_on_its_plot(silent, tmp_path, width):
    """As from a link on another page: nothing was opened before."""
    page = small_page()
    (tmp_path / "board.html").write_text(page, "utf-8")
    (anchor,) = re.findall(r'<article id="(study-linear[^"]*)"', whole(page))
    silent.size(width, 844, mobile=width < 500)
    silent.open(tmp_path / "board.html", anchor)
    silent.run(SOON)
    top, bottom = silent.run(f"(({{top, bottom}}) => [top, bottom])({plot_of(anchor)}.getBoundingClientRect())")
    assert 0 <= top < bottom and top < 844
    assert silent.run(f"{plot_of(anchor)}.checkVisibility()")


def plot_of(anchor: str) -> str:
    return f"document.getElementById('{anchor}').querySelector('svg')"


def test_nothing_that_a_record_says_becomes_markup_or_runs(silent, tmp_path):
    page = tmp_path / "board.html"
    page.write_text(evil_packed_page(), "utf-8")
    silent.open(page)
    open_all(silent)
    assert silent.run("document.querySelectorAll('img, iframe, section script, header script, [onerror]').length") == 0
    assert silent.run(f"document.body.innerText.includes({json.dumps(EVIL.split('<!--')[0].strip())})")
    assert silent.run("rows().then(each => each.length)") == 6


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (390, False)])
def test_the_page_itself_never_scrolls_sideways_and_its_words_stand_out(board, width, dark):
    board.size(width, 900, mobile=width < 500)
    board.media(dark=dark)
    open_all(board)
    assert board.run("document.documentElement.scrollWidth") <= width
    contrast = """(() => {
        const light = (name) => {
            const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1)
                .match(/../g).map(each => parseInt(each, 16) / 255)
                .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        return ['--text', '--faint', '--technique', '--worse', '--better'].map((name) => {
            const [a, b] = [light(name), light('--page')].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        });
    })()"""
    assert min(board.run(contrast)) >= 4.5  # WCAG 2.2, 1.4.3


def test_ten_thousand_seeds_make_a_page_that_is_whole_and_usable(silent, tmp_path, capsys):
    """Rows of three seeds each. The times are printed, not judged."""
    start_s = time.process_time()
    one = row("x")  # its analysis stands for all: what is judged here is the page
    rows = [
        replace(one, stack=f"stack_{number}", conditions=conditions(baseline=baseline, recipe=recipe))
        for baseline in ("bert", "gpt", "mae", "vit")
        for recipe in ("classic", "modern")
        for number in range(417)
    ]
    assert sum(len(row.seeds) for row in rows) == 10_008
    page: Path = tmp_path / "board.html"
    page.write_text(render(Report(rows)), "utf-8")
    made_s = time.process_time() - start_s
    shown_s = silent.open(page)
    open_all(silent, "section.board")
    assert silent.run("document.querySelectorAll('section.board tbody tr').length") == len(rows)
    silent.run(f"{column('step time')}.click()")
    choose(silent, "recipe", "")
    choose(silent, "baseline", "vit")
    assert silent.run("document.getElementById('count').textContent") == f"834 of {len(rows)} rows"
    assert page.stat().st_size < 40e6
    with capsys.disabled():
        print(f" [{made_s:.1f} s to write, {shown_s:.1f} s to open, {page.stat().st_size / 1e6:.0f} MB]", end="")


def test_what_plots_share_has_the_styles_of_each(board):
    open_all(board)
    shared = """(() => {
        const group = document.querySelector('.shared g');
        return ['fill', 'stroke'].map(what => getComputedStyle(group.querySelector('.axis'))[what]).concat(
            group.matches('.chart'));
    })()"""
    fill, stroke, own = board.run(shared)
    assert fill == "none" and stroke != "none"
    assert own  # a reference's copy is matched by selectors alone, without what stands around it


def test_the_page_of_which_to_take_follows_what_is_chosen(silent, tmp_path) -> None:
    rows = shown(lean("fast", 2**20, pace_s=0.01), lean("slow", 2**23, pace_s=0.04))
    cards = {"fast": card("fast"), "slow": card("slow").model_copy(update={"sells": "memory"})}
    page = tmp_path / "which.html"
    page.write_text(which_page.render(Standing.of(Report(rows, cards=cards))), "utf-8")
    silent.open(page, "goal=time")
    first = "document.querySelector('#techniques td').textContent"
    filled = "while (!document.querySelector('#techniques td')) await new Promise(done => setTimeout(done, 5))"
    waited = f"(async () => {{ {filled}; return {first}; }})()"
    assert silent.run(waited).startswith("fast: ")
    chosen = "const goal = document.forms.controls.goal; goal.value = 'memory'"
    silent.run(f"(() => {{ {chosen}; goal.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")
    assert silent.run(first).startswith("slow: ")
    assert "--goal memory" in silent.run("document.getElementById('command').textContent")
