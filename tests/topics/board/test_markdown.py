import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.judge.claims import Observation, VerdictBasis, judge
from suite.judge.metrics import MetricValue
from suite.record.text import code_in_markdown as code
from suite.record.text import in_markdown as escape
from suite.show.pages.board import boards, leaning, text
from suite.topics.board.markdown import MOST_LINES, render, split
from suite.topics.board.report import Report
from tests.factories import between, claim, evidence, heading, row
from tests.show.samples import failing, of_every_sort, on, shown, study


def test_techniques_stand_in_order_bounds_at_their_ends_and_nothing_is_dropped():
    (board,) = boards(of_every_sort())
    assert [[row.stack for row in tier] for tier in board.tiers] == [["fast"], ["same"], ["slow"]]
    ranked = [(tier, row.stack) for tier, row in board.ranked]
    assert ranked[0] == (">", "gainful") and ranked[-4] == ("<", "lossy")
    assert ranked[-3:] == [("–", "half"), ("–", "unlearned"), ("–", "untimed")]
    assert [row.stack for row in board.failed] == ["flash", "stuck", "wild"]


def test_a_modelled_headline_is_never_ranked_with_measured_ones():
    modelled = row("chip")
    modelled.metrics["time_to_quality"] = MetricValue("modelled", 0.1)
    (board,) = boards([*shown(evidence("fast", pace_s=0.01)), modelled])
    assert [(tier, row.stack) for tier, row in board.ranked] == [("1", "fast"), ("–", "chip")]
    assert text(modelled.value("time_to_quality"), "higher") == "≈×10.0"
    assert leaning(modelled.value("time_to_quality")) == 0


@pytest.mark.parametrize(
    ("at_most", "higher", "lower", "sure"), [(True, "> ×4.00", "< 0.25", 1), (False, "< ×4.00", "> 0.25", 0)]
)
def test_a_bound_on_a_cost_is_the_other_bound_on_a_speedup(at_most, higher, lower, sure):
    value = MetricValue("bound", 0.25, at_most=at_most)
    assert (text(value, "higher"), text(value, "lower"), leaning(value)) == (higher, lower, sure)


def test_the_page_is_the_same_for_the_same_records_in_any_order():
    assert render(Report(of_every_sort())) == render(Report(of_every_sort()[::-1]))


def test_every_table_line_has_as_many_cells_as_its_head():
    tables = re.findall(r"(?:^\|.*\|$\n?)+", render(Report(of_every_sort())), re.MULTILINE)
    assert len(tables) == 2, "one goal's, and the board's"
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}) == 1


def test_failures_unverified_rows_and_what_is_missing_say_why_and_what_to_do():
    page = render(Report(of_every_sort(), ["learned.jsonl:3: not a record"]))
    assert "- `flash`: unavailable while learning (seeds 0, 1, 2): needs CUDA" in page
    assert "- `stuck`: hung while timing (timing 0): silent for 600 s" in page
    assert "| 2 of 3 | 3 |" in page and "diverged while learning (seed 1): the loss became nan" in page
    assert "| `slow`† |" in page and "`slow`: unverified: learned, timed, since the code changed" in page
    assert "CUDA peak: n/a (no CUDA device)." in page
    command = "measure with: leantrain compare untimed baseline -b gpt --steps 200"
    assert f"`untimed`: missing: timings; {command}" in page
    assert "`unlearned`: missing: learned runs; " in page
    assert "could not be read and are left out: 1." in page


def test_a_row_without_the_ruler_has_its_other_numbers_and_the_command_that_learns_it():
    page = render(Report(shown(evidence("x", ruler=False))))
    assert "missing: the reference's scaling curve; measure with: leantrain compare x baseline" in page
    assert "--ruler 3" in page and "| – | `x` |" in page


def test_another_machine_s_curves_are_named():
    lines = evidence("x")
    elsewhere = heading("")["machine"].model_copy(update={"name": "elsewhere", "key": "e" * 16})
    moved = [each.model_copy(update={"machine": elsewhere}) if each.kind == "learned" else each for each in lines]
    assert "`x`: curves learned on elsewhere" in render(Report(shown(moved)))
    assert "learned on" not in render(Report(shown(lines)))


def test_boards_of_one_title_say_what_tells_them_apart() -> None:
    same, other = evidence("x"), on(evidence("y"), data="recipes, letters only", data_sha256="other")
    titles = [board.title for board in boards(shown(same, other))]
    assert len({*titles}) == 2 and any(title.endswith(" · recipes, letters only") for title in titles)
    assert len({board.title for board in boards(shown(same, on(evidence("y"), data_sha256="other")))}) == 2


def test_other_conditions_are_other_boards():
    titles = [board.title for board in boards(shown(evidence("x"), on(evidence("y"), size="micro")))]
    assert titles == [f"gpt · modern · {size} · pretrain · 200 steps" for size in ("micro", "nano")]


def test_without_records_it_says_what_to_do():
    assert "leantrain run" in render(Report())
    assert split(Report(), "boards") == (render(Report()), {})


# the front page -----------------------------------------------------------------------------------------------------


def test_the_front_page_of_a_catalogue_is_short_and_leads_to_every_baseline_s_numbers():
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.03)]
    (one, two), rest = shown(lines), on(evidence("fast"), baseline="vit")
    many = [type(one)(**vars(one) | {"stack": f"stack_{number:03}"}) for number in range(300)]
    judged = [judge(claim(read="Table 1"), "fast", between(0.7, 0.75), VerdictBasis("gpt"))]
    report = Report([*many, two, *shown(rest)], verdicts=judged)
    front, pages = split(report, "results/boards")
    assert len(front.splitlines()) <= MOST_LINES and max(map(len, front.splitlines())) <= 400
    assert re.search(r"^\d+ more stand on the page by goal, below\.$", front, re.MULTILINE)
    pictures = {name for name in pages if name.endswith(".svg")}
    assert set(re.findall(r"\]\(results/boards/(.*?)\)", front)) == set(pages)
    assert set(pages) - pictures == {"gpt.md", "vit.md", "claims.md", "goals.md"}
    assert "| reproduced | `fast.a_claim` |" in pages["claims.md"]
    assert all(f"`stack_{number:03}`" in pages["gpt.md"] for number in range(300)) and "stack_" not in pages["vit.md"]
    assert all(f"`stack_{number:03}`" in pages["goals.md"] for number in range(300))
    assert "| `fast` |" in pages["vit.md"]


def test_the_tables_say_by_form_where_a_value_comes_from_and_have_no_marks():
    rows = shown(evidence("fast", pace_s=0.01), evidence("alike"), evidence("slow", pace_s=0.04), changed=["slow"])
    front = render(Report(rows)).partition("## How to read it")[0]
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", front, re.MULTILINE))
    assert re.fullmatch(r" \|  \| ×\d\.\d+ \\\[\d\.\d+, \d\.\d+\\\] \|  \|  \| \*\*helps\*\*", lines["fast"])
    assert re.search(r"no difference \(±\d %\)$", lines["alike"])
    assert lines["slow"].endswith("not known: of older code"), "it stands on its technique's page"
    assert not re.search(r"[†‡≈]|\+\d |‹", front)
    assert all(line.count("|") - line.count("\\|") == 8 for line in front.splitlines() if line.startswith("|"))


def test_what_could_not_have_shown_a_change_is_not_called_no_difference():
    def words(seed_noise: float) -> str:
        rows = shown(evidence("noisy", seed_noise=seed_noise))
        return re.search(r"^\| `noisy` \| .* \| (.*?) \|$", render(Report(rows)), re.MULTILINE)[1]

    assert words(0.002) == "no difference (±3 %)"
    assert re.fullmatch(r"not known: within ±\d+ %", words(0.2))


def test_a_hostile_baseline_names_no_other_folder_s_file():
    rows = shown(on(evidence("x"), baseline="../../evil"), on(evidence("x"), baseline="evil"))
    front, pages = split(Report(rows), "boards")
    assert sorted(name for name in pages if name.endswith(".md")) == ["evil-2.md", "evil.md", "goals.md"]
    assert all(f"](boards/{name})" in front for name in ("evil.md", "evil-2.md"))


def test_a_study_stands_on_its_baseline_s_page():
    from suite.topics.studies.studies_on_board import Studied

    _, pages = split(Report(studies=[Studied(study(baseline="mae"))]), "boards")
    assert list(pages) == ["mae.md"] and "steps_to_quality" in pages["mae.md"]


# hostile words ------------------------------------------------------------------------------------------------------

EVIL = """<script>alert(1)</script>|`x`
| a | b |
# h [l](https://evil.example) <img src=x onerror=alert(1)> @you www.evil.example"""


def test_records_cannot_write_markup():
    rows = shown(failing("broken", "crashed", EVIL), evidence(EVIL), evidence("untimed " + EVIL, replicates=0))
    front, pages = split(Report(rows), "boards")
    for page in (render(Report(rows)), front, *(each for name, each in pages.items() if name.endswith(".md"))):
        assert "<script" not in page
        assert "<img" not in page
        assert "https://" not in page
        assert not re.search(r"(?<!\\)\[l\]", page)
        assert not re.search(r"^# h|^\| a", page, re.MULTILINE)


@given(st.text())
def test_escaped_text_is_one_line_without_live_markup(text):
    for made in (escape(text), code(text)):
        assert len(made.splitlines()) <= 1
        assert "<" not in made
        assert not re.search(r"(?<!\\)(\\\\)*\|", made.replace("\\\\", ""))


@pytest.mark.parametrize("name", ["lion", "lora:rank=4,alpha=0.5+sam", "dp_ddp"])
def test_ordinary_names_stay_readable(name):
    assert code(name) == f"`{name}`"


def test_claims_are_counted_and_shown_and_their_words_stay_words():
    evil = Observation(reason="<script>alert(1)</script> | `x`")
    judged = [
        judge(claim(read="Table 1"), "fast", between(0.7, 0.75), VerdictBasis("gpt")),
        judge(claim(), "slow", evil, VerdictBasis("gpt")),
    ]
    page = render(Report(of_every_sort(), verdicts=judged))
    counts = "Of 2 claims 1 are read, 1 judged, 1 decided. Measured: 1 reproduced. 1 not measured."
    assert f"## Claims of the papers\n\n{counts}" in page
    assert "| reproduced | `fast.a_claim` |" in page
    assert "<script" not in page
    lines = [line for line in page[page.index("## Claims") :].splitlines() if line.startswith("|")]
    assert len(lines) > 4 and len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "Claims of the papers" not in render(Report(of_every_sort()))
