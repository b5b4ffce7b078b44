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
from tests.show.samples import card, failing, of_every_sort, on, shown, study


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
    assert len(tables) == 2
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}) == 1


def test_what_of_the_catalogue_was_not_measured_is_named():
    cards = {"absent": card("absent"), "fast": card("fast")}
    page = render(Report(of_every_sort(), cards=cards))
    assert "- Not measured at all: 1 of 2 techniques of the catalogue: `absent`.\n" in page
    assert "Not measured" not in render(Report(of_every_sort(), cards={"fast": cards["fast"]}))


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
    assert len(front.splitlines()) <= MOST_LINES
    assert re.search(r"^\d+ more stand on the pages below\.$", front, re.MULTILINE)
    assert set(re.findall(r"\]\(results/boards/(.*?)\)", front)) == set(pages) == {"gpt.md", "vit.md", "claims.md"}
    assert "1 reproduced." in front and "| reproduced | `fast.a_claim` |" in pages["claims.md"]
    assert all(f"`stack_{number:03}`" in pages["gpt.md"] for number in range(300)) and "stack_" not in pages["vit.md"]
    assert "| `fast` |" in pages["vit.md"]


def test_the_matrix_says_in_words_what_intervals_say_and_orders_by_what_is_sure():
    gpt = [*evidence("fast", pace_s=0.01), *evidence("mixed", pace_s=0.01), *evidence("alike")]
    front = render(
        Report(shown(gpt, on(evidence("mixed", pace_s=0.04), baseline="vit"), failing("wild", "diverged", "nan")))
    )
    lines = re.findall(r"^\| `(\w+)` \| .* \| (.*?) \|$", front.split("## How")[0], re.MULTILINE)
    assert lines == [
        ("fast", "Sooner on gpt."),
        ("mixed", "Sooner on gpt; later on vit."),
        ("alike", "No difference seen on gpt, where one of 1% or more would have shown."),
        ("wild", "Diverged on gpt."),
    ]
    assert re.search(r"`fast` \| ×[^|]*\| \*\*×2\.\d+ \[", front) and re.search(r"`alike` \| ×", front)


def test_one_recipe_and_size_has_the_matrix_and_others_are_named():
    two = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    front = render(Report(shown(two, on(evidence("fast", pace_s=0.04), size="micro")))).split("## How")[0]
    assert re.search(
        r"^\| technique \| equivalent budget, trend.↑ \| here: gpt \| here: peak tensors", front, re.MULTILINE
    )
    assert "1 better, 1 worse" in front and "On the pages below also: modern micro." in front


def test_a_board_without_a_headline_has_no_column_and_is_named():
    page = render(Report(shown(evidence("fast", pace_s=0.01), on(evidence("fast", replicates=0), baseline="vit"))))
    head = next(line for line in page.splitlines() if line.startswith("| technique"))
    assert "gpt" in head and "vit" not in head
    assert re.search(r"Without a time to the same quality yet, on the pages below: vit[^.]*\.\n", page)
    alone = render(Report(shown(evidence("fast", replicates=0))))
    assert "Without a time" not in alone, "a table without columns says nothing"


def test_what_could_not_have_shown_a_change_is_not_called_alike():
    def words(seed_noise: float) -> str:
        rows = shown(evidence("noisy", seed_noise=seed_noise))
        return re.search(r"^\| `noisy` \| .* \| (.*?) \|$", render(Report(rows)), re.MULTILINE)[1]

    assert words(0.002) == "No difference seen on gpt, where one of 2% or more would have shown."
    unsure = r"Too uncertain to tell on gpt, where only a change of [\d.]+ times or more would have shown\."
    assert re.fullmatch(unsure, words(0.05))
    assert words(0.2) == "Too noisy to see even a threefold change on gpt."


def test_a_hostile_baseline_names_no_other_folder_s_file():
    rows = shown(on(evidence("x"), baseline="../../evil"), on(evidence("x"), baseline="evil"))
    front, pages = split(Report(rows), "boards")
    assert sorted(pages) == ["evil-2.md", "evil.md"]
    assert all(f"](boards/{name})" in front for name in pages)


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
    for page in (render(Report(rows)), front, *pages.values()):
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
