import base64
import hashlib
import itertools
import json
import math
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.entries.catalogue import catalogue
from suite.judge.claims import Observation, VerdictBasis, judge
from suite.judge.metrics import MetricValue
from suite.judge.statistics import Interval
from suite.record.placed import CountPlace
from suite.show.packing import packed
from suite.show.pictures.charts import REFERENCE, CostPoint, front, learning_curves, ruler, ruler_points, whisker
from suite.topics.board import html
from suite.topics.board.report import Folder, Report, origins
from suite.topics.board.terms import TERMS
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from suite.topics.studies.lab import StudyTable
from suite.topics.studies.studies_on_board import Studied
from tests.factories import MACHINE, between, claim, evidence, records, row, side, timed
from tests.show.samples import EVIL, card, failing, lean, on, shown, study, unpacked, whole


def render(report):
    """The page with what is packed in its place."""
    return whole(html.render(report))


VOID = {"meta", "input", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """Elements and attributes of a page; fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.scripts, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.words).append(data)

    def having(self, tag):
        return [attributes for each, attributes in self.elements if each == tag]


@cache
def evil_page():
    return whole(evil_packed_page())


@cache
def evil_packed_page():
    machine = MACHINE.model_copy(update={"name": EVIL, "facts": {"cpu": EVIL, "cores": EVIL}})
    lines = [
        *evidence(EVIL),
        *evidence("lossy", final=2.9),
        *evidence("gainful" + EVIL, final=1.4),
        *evidence("untimed", replicates=0),
        *failing("broken", "crashed", EVIL),
        *lean("slow", 2**20, pace_s=0.04, probes={EVIL: 1.0}),
    ]
    rows = shown([each.model_copy(update={"machine": machine}) for each in lines], changed=["slow", EVIL])
    wicked = claim(statement=EVIL, metric=EVIL, note=EVIL, setting={"architecture": EVIL}, read=EVIL)
    judged = [
        judge(wicked, EVIL, between(0.7, 0.75), VerdictBasis(EVIL, EVIL, EVIL, EVIL)),
        judge(wicked, EVIL, Observation(reason=EVIL), VerdictBasis()),
        judge(wicked.model_copy(update={"kind": "literature"}), EVIL, Observation(), VerdictBasis()),
    ]
    tables = [StudyTable(EVIL, (EVIL, EVIL), [(EVIL, n) for n in range(1000)], EVIL), StudyTable("none", ("x",), [])]
    hostile = {"baseline": EVIL, "size": EVIL, "recipe": EVIL, "machine": machine, "tables": tables}
    studied = [
        *(Studied(study("lossy", **hostile), unverified=True) for _ in range(2)),
        Studied(study(EVIL, **hostile)),
        Studied(study(EVIL, tables=[StudyTable("a", (EVIL,), [(float("nan"),)])])),
        *(Studied(study(size=size)) for size in ("nano", "nano", "micro")),
    ]
    return html.render(Report(rows, [EVIL], judged, {"lossy": card("lossy", words=EVIL)}, studied))


@cache
def modelled_page():
    """Of a technique whose step is modelled on a GPU, and of a setting of it."""
    place = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
    step = ModelledTime(place=place, gpu="A100-80", stack="slow", reference="baseline", step_s=0.4, ratio=1.2)
    rows = shown(lean("slow", 2**20, pace_s=0.04), lean("slow:pace=2", 2**20, pace_s=0.02))
    cards = {"slow": card("slow")}
    return whole(html.render(Report(rows, cards=cards, gpu_times=GpuTimes().with_newer(step))))


def test_records_cannot_run_anything():
    page = Page(evil_page())
    assert [each.get("id") for each in page.having("script")] == ["entries", "parts", "data", None]
    assert not page.having("img")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert EVIL in "".join(page.words)  # it is there, as text
    assert unpacked(page.scripts[2])[0]["machine"] == EVIL
    evil = Page(evil_packed_page())
    assert len(evil.having("script")) == 4 and not evil.having("img")
    names = [each["name"] for board in json.loads(evil.scripts[0]).values() for each in board]
    assert EVIL in names and len(names) == 6


def test_what_stands_without_the_script_is_the_findings_the_tables_and_every_title():
    packed, opened = evil_packed_page(), evil_page()
    words = " ".join(Page(packed).words)
    assert "What the records show" in words and "Less time" in words and "costs" in words
    assert words.count("This part is packed") == packed.count('class="packed"') > 6
    for tag in ("h2", "nav"):
        assert len(Page(packed).having(tag)) == len(Page(opened).having(tag))
    sections = {each["id"] for each in Page(packed).having("section") if "id" in each}
    assert sections == {each["id"] for each in Page(opened).having("section") if "id" in each}
    links = {each["href"][1:] for each in Page(packed).having("a")}
    ids = {attributes.get("id") for _, attributes in Page(packed).elements}
    assert {each for each in links if each.startswith("technique-")} <= ids


def test_only_the_page_s_own_script_may_run_and_nothing_is_loaded():
    text = evil_page()
    page = Page(text)
    policy = next(m["content"] for m in page.having("meta") if m.get("http-equiv") == "Content-Security-Policy")
    own = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{own}'" in policy
    assert "default-src 'none'" in policy
    assert not {"link", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    assert not any("src" in attributes for _, attributes in page.elements)
    assert all(a["href"].startswith("#") for a in page.having("a"))
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", text)


@pytest.mark.parametrize("drawn", [evil_page, modelled_page])
def test_ids_are_unique_and_every_link_has_its_target(drawn):
    page = Page(drawn())
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.having("a")} <= set(ids)
    assert {a["aria-labelledby"] for a in page.having("div") if "aria-labelledby" in a} <= set(ids)


@pytest.mark.parametrize("drawn", [evil_page, modelled_page])
def test_no_heading_is_more_than_one_rank_below_the_one_before_it(drawn):
    ranks = [int(tag[1]) for tag, _ in Page(drawn()).elements if re.fullmatch(r"h\d", tag)]
    assert {1, 2, 3, 4} <= {*ranks}
    assert all(below <= above + 1 for above, below in itertools.pairwise(ranks))


def test_a_hostile_machine_key_ends_no_attribute_and_nothing_turns_the_page_s_text():
    turned = "x\u202e\x1b[2J\x07\u2066"
    machine = MACHINE.model_copy(update={"key": '"\n<i', "name": turned})
    rows = shown([each.model_copy(update={"machine": machine}) for each in evidence(turned)])
    text = render(Report(rows, studies=[Studied(study("lossy", machine=machine, baseline=turned))]))
    ids = [attributes["id"] for _, attributes in Page(text).elements if "id" in attributes]
    assert any(each.startswith("study-") for each in ids) and any(each.startswith("gpt-modern") for each in ids)
    assert all(re.fullmatch(r"[\w.-]+", each) for each in ids)
    assert all(each.isprintable() or each in "\n\xa0" for each in text)


def test_rows_with_the_same_stack_have_their_own_ids():
    twins = [timed([side(), side("x"), side("x")], replicate) for replicate in range(3)]
    page = Page(render(Report([*shown(twins), *shown(twins)])))
    ids = [each["id"] for each in page.having("tr") if "id" in each]
    assert len(ids) == len(set(ids)) == 2


def test_tables_are_usable_with_a_keyboard_and_without_the_script():
    page = Page(evil_page())
    heads = [attributes for attributes in page.having("th") if attributes.get("scope") == "col"]
    buttons = [each for each in page.having("button") if not {"id", "aria-pressed"} & each.keys()]
    assert len(buttons) == len(heads) > 8
    assert sum("aria-sort" in each for each in heads) == 2  # of the board and of the goal's table
    filters = next(each for each in page.having("details") if each.get("id") == "filters")
    assert "hidden" in filters  # controls that need the script appear with it
    marks = {"measured", "exact", "unavailable"}
    numbers = [each for each in page.having("td") if marks & {*each.get("class", "").split()}]
    assert len(numbers) > 20 and all("data-sort" in each for each in numbers)  # others are sorted by their words


def test_claims_are_a_table_with_a_link_to_it():
    page = Page(evil_page())
    assert {"href": "#claims"} in page.having("a")
    sentence = "1 judged, 1 decided. Measured: 1 reproduced. 1 not measured, 1 quoted."
    assert any(sentence in words and words.endswith("below 1 is better.") for words in page.words)
    assert "Claims of the papers" not in render(Report())


def test_a_point_of_the_plot_leads_to_its_technique_s_section():
    page = Page(evil_page())
    names = {each["data-name"]: each["id"] for each in page.having("details") if "data-name" in each}
    points = set(re.findall(r'<a href="#([^"]*)"><g><title>slow: time', evil_page()))
    assert points == {names["slow"]}


def test_the_findings_come_first_then_pictures_then_a_table_for_each_goal_then_all_numbers():
    rows = shown(evidence("lossy", final=2.9), on(evidence("lossy"), baseline="vit"), failing("broken", "crashed", "x"))
    cards = {"lossy": card("lossy"), "absent": card("absent")}
    page = render(Report(rows, cards=cards))
    words = [each.strip() for each in Page(page).words if each.strip()]
    order = [
        "What the records show",
        "Time to the same quality",
        "I want",
        "Less time",
        "Techniques",
        "All numbers",
        "Methods",
    ]
    places = [words.index(title) for title in order if title != "Time to the same quality"]
    assert places == sorted(places)
    heads = words[words.index("Less time") + 2 :][:8]
    assert heads == [
        "Less time",
        "technique",
        "FLOPs of a step, paper's size",
        "step on an A100",
        "speedup at equal quality",
        "quality by others",
        "works on",
        "verdict",
    ]
    names = re.findall(r'<tr data-name="(\w+)">', page)
    assert sorted(names) == ["absent", "broken", "lossy"], "what was not measured has a line, too"


def test_no_cell_of_a_goal_s_table_has_a_mark_and_each_has_one_value_and_at_most_one_interval():
    rows = shown(evidence("x", pace_s=0.01), evidence("y"), changed=["y"])
    tables = re.findall(r'<table class="goals">.*?</table>', render(Report(rows)), re.DOTALL)
    assert len(tables) == 1
    for table in tables:
        assert table.count('<th scope="col"') == 7 and not re.search("[†‡?≈]|\\+1", re.sub(r'title="[^"]*"', "", table))
        for cell in re.findall(r"<td.*?</td>", table, re.DOTALL):
            assert cell.count('class="value"') <= 1 and cell.count('class="ends"') <= 1


def test_every_term_is_told_to_a_pointer_and_there_are_ten_at_most():
    assert len(TERMS) <= 10
    page = Page(render(Report(shown(evidence("x")))))
    titles = {each.get("title") for each in page.having("th")}
    assert {TERMS[name] for name in ("paper's size", "speedup at equal quality", "works on", "verdict")} <= titles
    assert all(name in page.words for name in TERMS)


def test_a_technique_s_section_has_its_card_plots_claims_mutants_usage_and_records():
    fields = {"variant": "the authors' form", "limitations": "slow on a CPU", "counter_evidence": "others saw none"}
    cards = {"lossy": card("lossy", words="a paper").model_copy(update=fields)}
    lines = evidence("lossy", final=2.9)
    half = claim(statement="half the time", read="Table 1")
    report = Report(
        shown(lines, changed=["lossy"]),
        cards=cards,
        qualities={"gpt": "next-token cross-entropy (nats)"},
        verdicts=[judge(half, "lossy", between(0.4, 0.6), VerdictBasis("gpt"))],
        folders={"lossy": Folder("techniques.evil.lossy.technique", ("Lossy", "lossy_step"), ("no sign", "uphill"))},
        origins=origins(records(lines)),
    )
    page = render(report)
    section = re.search(r'<details class="technique" id="technique-lossy".*?</article></details>', page, re.DOTALL)[0]
    words = " ".join(Page(section).words)
    assert all(each in words for each in fields.values())
    axes = "".join(Page(re.search(r"<defs>.*?</defs>", page, re.DOTALL)[0]).words)
    assert "validation loss" in axes and "progress (steps of the reference)" in axes
    assert "budget, or time, over the reference's own" in axes and "final test loss" in axes
    assert "gpt · modern · nano · next-token cross-entropy (nats)" in words
    assert "half the time" in words and "Measured: 1 reproduced." in words
    assert "2 broken variants" in words and "no sign" in words
    assert "leantrain stack lossy+OTHER -b gpt" in words
    applying, stacked, commands, own, cited = re.findall(
        r'<pre tabindex="0"><code>(.*?)</code></pre>', section, re.DOTALL
    )
    assert [line.split()[1] for line in commands.split("\n")] == ["compare", "stack", "count", "claims"]
    assert applying.startswith("import leantrain\n") and "leantrain.apply(model, &quot;lossy&quot;" in applying
    assert (
        stacked == "leantrain stack lossy+OTHER -b gpt"
        and own.count("\n") == 0
        and cited.startswith("@misc{lossy,\n  title = ")
        and cited.endswith("\n}")
    )
    assert "from techniques.evil.lossy.technique import Lossy, lossy_step" in words
    assert "@misc{lossy," in words
    timings = [each.id[:8] for each in lines if each.kind == "timed"]
    assert " ".join(timings) in words and "2026-01-01" in words and "changed since" in words


def test_what_a_folder_offers_is_read_without_importing_it():
    lion = Folder.of(catalogue()["lion"])
    assert lion.module == "techniques.optimizers.lion.technique" and "Lion" in lion.names
    assert "LionTechnique" not in lion.names and not any(name.startswith("_") for name in lion.names)
    assert "no sign" in lion.mutants


def test_every_kind_of_value_has_a_style_of_its_own_and_a_modelled_one_is_sorted_last():
    one = row("x", final=1.4)
    one.metrics["energy"] = MetricValue("modelled", 0.5)
    page = Page(render(Report([one, *shown(evidence("fast", pace_s=0.01))])))
    cells = {each["class"].split()[0]: each.get("data-sort") for each in page.having("td") if each.get("class")}
    assert {"measured", "exact", "bound", "modelled", "unavailable"} <= set(cells)
    assert cells["modelled"] == "" and float(cells["bound"]) > 1
    assert "≈0.50" in page.words and "> ×2.80" in page.words


def test_the_mark_of_unverified_evidence_says_which_kind_it_is():
    page = Page(render(Report(shown(evidence("x"), changed=["x"]))))
    assert {each["title"] for each in page.having("abbr")} == {"unverified: learned, timed"}
    assert not Page(render(Report(shown(evidence("x"))))).having("abbr")


# drawings -----------------------------------------------------------------------------------------------------------


def test_the_ruler_has_every_seed_the_curve_and_every_technique_where_it_ended():
    rows = shown(evidence("better", final=1.9), evidence("far", final=1.3), evidence("lost", final=3.5))
    drawn = Page(ruler(rows, {"better": "technique-better"}).svg())
    losses = rows[0].known.ruler.losses
    assert sum(each.get("class") == "seed" for each in drawn.having("circle")) == np.isfinite(losses).sum()
    kinds = [each.get("class") for each in drawn.having("path")]
    assert kinds.count("mean reference") == kinds.count("band reference") == kinds.count("span better") == 1
    assert kinds.count("dot better") == kinds.count("dot worse") == 1  # the bounds' arrows
    assert {"better", "far", "lost"} <= set(drawn.words)
    assert [each["href"] for each in drawn.having("a")] == ["#technique-better"]
    points = {each.stack: each for each in ruler_points(rows)}
    assert (points["far"].beyond, points["lost"].beyond, points["better"].beyond) == (1, -1, 0)
    assert points["better"].budget == pytest.approx((1.9 / 2) ** (1 / -0.2), rel=0.05)
    assert points["better"].loss == pytest.approx(1.9, rel=0.01)
    assert "worth more than 2.80 of the reference's budget" in points["far"].says


def test_a_board_without_a_scaling_curve_or_with_one_seed_of_it_is_drawn_as_far_as_it_is_known():
    assert ruler(shown(evidence("x", ruler=False))) is None
    lines = [each for each in evidence("x") if getattr(each, "seed", 0) == 0]
    drawn = ruler(shown(lines)).svg()
    assert 'class="mean reference"' in drawn and 'class="band reference"' not in drawn


def test_learning_curves_are_means_over_seeds_along_reference_steps():
    reference, technique = learning_curves(row("x", steps=100, final=1.5))
    assert reference.mean[-1, 0] == technique.mean[-1, 0] == 200  # of 100 own steps
    ends = [each[-1, 1] for each in technique.seeds]
    assert len(ends) == 3 and technique.mean[-1, 1] == pytest.approx(np.mean(ends))
    assert min(ends) < technique.mean[-1, 1] < max(ends)
    assert learning_curves(row("x", seeds=0)) == []
    assert all(math.isfinite(value) for side in (reference, technique) for value in side.mean.ravel())


def test_every_drawing_is_named_or_hidden_from_readers():
    drawings = Page(evil_page()).having("svg")
    charts = {f"chart {kind}" for kind in ("ruler", "pareto", "curves", "forest")}
    opening = {"chart costs", "chart same-quality"} & {each["class"] for each in drawings}
    assert {each["class"] for each in drawings} - opening == {"whisker", "study", "chart shared", *charts}
    assert all(each.get("aria-hidden") == "true" or each.get("aria-label") for each in drawings)


def test_a_page_without_records_says_what_to_do():
    assert "leantrain run" in "".join(Page(render(Report())).words)


def test_the_front_is_what_nothing_beats():
    better, dear, lossy = CostPoint("a", 0.5, 1.0, 1.0), CostPoint("b", 1.2, 1.1, 1.0), CostPoint("c", 0.4, 0.4, 1.2)
    assert front([REFERENCE, better, dear, lossy]) == [better, lossy]
    assert front([REFERENCE, CostPoint("twin", 1.0, 1.0, 1.0)]) == [REFERENCE, CostPoint("twin", 1.0, 1.0, 1.0)]


def test_a_whisker_is_symmetric_in_logs_and_stays_inside():
    def of(low, high):
        drawn = whisker(Interval(1.0, low, high, 0.95, "over seeds", 3), 0.7)
        return re.search(r"M([\d.]+) 6H([\d.]+)", drawn).groups()

    left, right = map(float, of(0.8, 1 / 0.8))
    assert 50 - left == pytest.approx(right - 50)
    assert tuple(map(float, of(1e-9, 1e9))) == (3, 97)
    assert "6H" not in whisker(Interval(1.0, 0.0, float("inf"), 0.95, "over seeds", 1), 0.7)


@pytest.mark.skipif(not shutil.which("node"), reason="node runs the page's script")
def test_sorting_puts_numbers_in_order_and_missing_last_and_csv_is_inert():
    script = (files("suite.topics.board") / "board.js").read_text("utf-8")
    script += """
    const sorted = (values, d) => [...values].sort((a, b) => compared(a, b, d));
    console.log(JSON.stringify([
      sorted(["10", "", "9.5", "-1"], 1), sorted(["10", "", "9.5", "-1"], -1), sorted(["b", "a", ""], 1),
      csvCell('=HYPERLINK("x")'), csvCell(-1.5), csvCell(null), csvCell("a,b"),
    ]));"""
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(done.stdout) == [
        ["-1", "9.5", "10", ""],
        ["10", "9.5", "-1", ""],
        ["a", "b", ""],
        '"\'=HYPERLINK(""x"")"',
        "-1.5",
        "",
        '"a,b"',
    ]


@given(st.recursive(st.none() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)))
def test_what_is_packed_comes_out_as_it_was(value: Any) -> None:
    assert unpacked(packed(value)) == value
    assert unpacked(packed([value, "<tr><td>1</td></tr>" * 3, {"a": {"b": {"c": "<svg><p>"}}}]))[0] == value
    assert re.fullmatch("[A-Za-z0-9+/=]+", packed(value))
