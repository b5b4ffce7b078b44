"""What readers with a GPU ask of the page: each answer stands on the first screen or one click away, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.judge.claims import VerdictBasis, judge
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.topics.board.html import render
from suite.topics.board.report import Report
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from tests.factories import between, claim, evidence, learned
from tests.show.chromium import FOUND, MISSING, Chromium
from tests.show.samples import card, lean, shown

pytestmark = pytest.mark.skipif(FOUND is None, reason=MISSING)

LARGE = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
SIZES = {"baseline": (100, 100), "lora": (41, 70), "checkpointing": (52, 133), "lion": (93, 100)}
"""Peak and FLOPs of a step, by stack."""
GOODS = {"lora": "trainable parameters", "checkpointing": "memory", "lion": "time", "lawa": "robustness"}


def counted(stack: str, peak: int, flops: int) -> SizeCount:
    trained = 1 if stack == "lora" else 100
    quantities = {
        "peak_tensor_bytes": peak * 10**8,
        "flops": flops,
        "trainable_parameter_count": trained,
        "saved_activation_bytes": peak,
        "optimizer_state_bytes": peak,
    }
    return SizeCount(place=LARGE, stack=stack, reference="baseline", code="c", quantities=quantities)


def page() -> str:
    """Of as many techniques as no screen holds, those that the questions are about among them."""
    asked = [
        *lean("lora", 2**20, pace_s=0.04),
        *lean("checkpointing", 2**21, pace_s=0.03),
        *lean("lion", 2**22, pace_s=0.01),
        *evidence("lawa"),
        *evidence("lion+lawa", pace_s=0.008),
    ]
    others = [line for number in range(40) for line in lean(f"other_{number}", 2**22, pace_s=0.03)]
    step = ModelledTime(
        place=LARGE, gpu="A100-80", stack="checkpointing", reference="baseline", step_s=0.4, ratio=1.29, half_width=0.07
    )
    statement = claim(statement="It halves the time.", read="Table 1")
    cards = {name: card(name).model_copy(update={"sells": good}) for name, good in GOODS.items()}
    counts = PaperScale(counts=[counted(stack, *size) for stack, size in SIZES.items()])
    return render(
        Report(
            shown(asked, others, [learned()]),
            cards=cards,
            paper_scale=CountsAtScale(counts),
            verdicts=[judge(statement, "lawa", between(1.2, 1.3), VerdictBasis("gpt", size="large"))],
            gpu_times=GpuTimes().with_newer(step),
        )
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as found:
        found.size(1400, 900)
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written: Path = tmp_path_factory.mktemp("questions") / "board.html"
    written.write_text(page(), "utf-8")
    return written


@pytest.fixture
def opened(browser: Chromium, file: Path) -> Chromium:
    """As the page opens."""
    browser.open(file)
    return browser


ON_SCREEN = """(element => {
    const {top, bottom, left, right} = element.getBoundingClientRect();
    const within = top >= 0 && bottom > 0 && bottom <= innerHeight && left >= 0 && right <= innerWidth;
    return element.checkVisibility() && within;
})"""
SOON = "new Promise(done => setTimeout(done, 150))"


def line(stack: str) -> str:
    return f"document.querySelector('#answer tr[data-name=\"{stack}\"]')"


def click(browser: Chromium, selector: str) -> None:
    """A click on what can be seen without scrolling."""
    assert browser.run(f"{ON_SCREEN}(document.querySelector('{selector}'))"), selector
    browser.run(f"document.querySelector('{selector}').click()")
    browser.run(SOON)


def test_does_lora_save_memory_on_a_large_model_and_how_much(opened: Chromium) -> None:
    click(opened, "button[data-goal=trained]")
    assert opened.run(f"{ON_SCREEN}({line('lora')})")
    cell = f"{line('lora')}.cells[1]"
    assert opened.run(f"{cell}.textContent") == "=0.41"
    assert opened.run(f"{cell}.dataset.label") == "memory at paper's size" and "large" in opened.run(f"{cell}.title")


def test_is_lion_worth_it(opened: Chromium) -> None:
    field = "document.getElementById('filter')"
    assert opened.run(f"{ON_SCREEN}({field})")
    opened.run(f"{field}.value = 'lion'; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    assert opened.run(f"{ON_SCREEN}({line('lion')})")
    words = opened.run(f"{line('lion')}.lastElementChild.textContent")
    assert words.startswith("Sooner on gpt")
    opened.run(f"{line('lion')}.querySelector('th a').click()")
    opened.run(SOON)
    assert opened.run("document.querySelector('.technique[data-name=lion] article').checkVisibility()")


def test_what_does_checkpointing_cost_on_an_a100(opened: Chromium) -> None:
    click(opened, "button[data-goal=memory]")
    own = line("checkpointing")
    heads = opened.run("[...document.querySelectorAll('#answer thead th')].map(each => each.textContent)")
    place = heads.index("step on A100\xa0↓")
    assert heads.index("memory at paper's size\xa0↓") < place < heads.index("gpt")
    assert opened.run(f"{ON_SCREEN}({own}.cells[{place}])")
    assert opened.run(f"{own}.cells[{place}].textContent") == "≈1.29 [1.21, 1.38]"
    assert "modelled" in opened.run(f"{own}.cells[{place}].className")
    opened.run(f"{own}.querySelector('th a').click()")
    opened.run(SOON)
    detail = opened.run("document.querySelector('.technique[data-name=checkpointing] article').innerText")
    assert "At the papers' own sizes" in detail and "≈400 ms, ≈1.29 [1.21, 1.38]" in detail


def test_which_claims_failed_near_their_setting(opened: Chromium) -> None:
    said = "document.querySelector('.pointers li')"
    assert opened.run(f"{ON_SCREEN}({said})")
    assert "1 contradicted: lawa.a_claim" in opened.run(f"{said}.textContent")
    click(opened, '.pointers a[href="#claims"]')
    assert opened.run("document.querySelector('#claims tbody tr').checkVisibility()")
    assert opened.run("document.querySelector('#claims tbody td').textContent") == "contradicted"


def test_what_helps_together(opened: Chromium) -> None:
    said = "document.querySelector('.pointers li:last-child')"
    assert opened.run(f"{ON_SCREEN}({said})")
    words = opened.run(f"{said}.textContent")
    assert "1 stack measured beside its parts; sooner than the reference: lion+lawa" in words
    click(opened, '.pointers a[href="#stacks"]')
    assert opened.run("document.querySelector('#stacks tbody tr').checkVisibility()")
