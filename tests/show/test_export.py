"""What other tools read back is what the rows say: pandas and huggingface_hub are the readers."""

from __future__ import annotations

import io
import json
import math
import sys

import pandas
import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.contract.sources import Sources
from suite.judge.rows import as_dict, pairs
from suite.record.schema import Energy
from suite.record.store import Store
from suite.show.export import FORMULA_STARTS, TidyTable, as_csv, as_parquet, model_card, replicates, row_values
from tests.factories import MACHINE, comparison, conditions, contender, failure, record

EVIL = "=HYPERLINK(\"http://example.org\";'x')"
CHANGED = Sources("h" * 64, {"gpt": "b" * 64}, {"x": "2" * 64})


def several():
    """Rows with everything that a table must carry: failures, staleness, probes, energy, an unknown, a formula."""
    joules = Energy(joules_per_step=2.0, kind="measured_counter", method="rapl", scope="cpu_package")
    good = [
        record(
            [
                contender(energy=joules),
                contender("x", energy=joules, probes={"x.size": 1.5 + seed}, pace_s=0.01, counters=None),
            ],
            seed,
        )
        for seed in range(3)
    ]
    bad = record([contender(), failure("x", "crashed", EVIL)], 3)
    other = comparison("y", seeds=2)
    return pairs([*good, bad, *other], CHANGED)


def frame(content: str | bytes) -> pandas.DataFrame:
    """As somebody reads it who knows nothing of leantrain."""
    if isinstance(content, bytes):
        return pandas.read_parquet(io.BytesIO(content))
    return pandas.read_csv(io.StringIO(content), float_precision="round_trip")


@pytest.fixture(scope="module", params=["csv", "parquet"])
def read(request):
    return lambda table: frame(as_csv(table) if request.param == "csv" else as_parquet(table))


def same(cell, expected):
    if expected is None or expected == "":
        return cell in (None, "") or pandas.isna(cell)
    return cell == expected


def test_every_number_of_every_row_comes_back_exactly(read):
    rows = several()
    values = read(row_values(rows)).set_index(["stack", "metric"])
    for row in rows:
        for name, value in as_dict(row)["metrics"].items():
            line = values.loc[(row.stack, name)]
            interval = value["interval"] or dict.fromkeys(("low", "high", "level", "n", "method"))
            expected = {
                "kind": value["kind"],
                "value": value["ratio"],
                "reason": value["reason"],
                "note": value["note"],
            }
            expected |= {each: interval[each] for each in ("low", "high", "level", "n", "method")}
            expected |= {"reference_value": value["reference"], "contender_value": value["contender"]}
            for column, number in expected.items():
                assert same(line[column], number), (row.stack, name, column)
    assert len(values) == sum(len(row.metrics) + len(row.probes) + (row.setup is not None) for row in rows)


def test_a_line_says_where_it_comes_from(read):
    x, y = sorted(several(), key=lambda row: row.stack)
    values = read(row_values([x, y]))
    line = values[(values["stack"] == "x") & (values.metric == "step_time")].iloc[0]
    assert (line.machine, line.data_sha256, line.steps) == (MACHINE.name, conditions().data_sha256, 200)
    assert line.records.split() == list(x.records) and len(x.records) == 4
    assert (line.seeds, str(line.failed_seeds)) in (("0 1 2", "3"), ("0 1 2", "3.0"))
    assert line.stale == "x changed" and EVIL in line.notes
    probe = values[values.metric == "probe.x.size"].iloc[0]
    assert (probe.scale, probe.value, probe.n) == ("value", 2.5, 3)
    assert not (values[values.kind == "unavailable"].value == 0).any()
    assert values[values.kind == "unavailable"].value.isna().all()


def test_every_seed_comes_back_failures_too(read):
    rows = several()
    seeds = read(replicates(rows))
    x = next(row for row in rows if row.stack == "x")
    ours = seeds[seeds["stack"] == "x"].set_index("seed")
    for each in x.replicates:
        line = ours.loc[each.seed]
        assert line.status == "ok"
        assert line["contender_probe.x.size"] == 1.5 + each.seed
        assert line.contender_setup_s == each.contender.setup_s
        assert line.contender_loss == each.contender.curve[-1].loss
        assert line.training_time_ratio == math.exp(each.training_log_ratio)
        assert line.contender_step_s / line.reference_step_s == pytest.approx(line.step_time_ratio)
        assert line.reference_flops == each.reference.counters.flops and pandas.isna(line.contender_flops)
        assert line.contender_energy_joules_per_step == 2.0
    crashed = ours.loc[3]
    assert (crashed.status, crashed.failed_side) == ("crashed", "x")
    assert pandas.isna(crashed.step_time_ratio) and pandas.isna(crashed.reference_steps)
    assert list(ours.record) == list(x.records)


def test_parquet_columns_have_one_type_whatever_the_lines_hold():
    whole, empty = (pandas.read_parquet(io.BytesIO(as_parquet(row_values(rows)))) for rows in (several(), []))
    assert list(whole) == list(empty)
    assert len(empty) == 0
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(io.BytesIO(as_parquet(row_values(rows)))) for rows in (several(), several()[:1], [])]
    assert schemas[0].equals(schemas[1]) and schemas[0].equals(schemas[2])


def test_a_formula_is_disarmed_in_csv_and_intact_in_parquet():
    table = replicates(several())
    assert EVIL in list(frame(as_parquet(table)).reason)
    assert f"'{EVIL}" in list(frame(as_csv(table)).reason)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(st.tuples(TEXT | st.sampled_from(FORMULA_STARTS).flatmap(lambda start: TEXT.map(lambda t: start + t)),
                          st.none() | st.floats(allow_nan=False, allow_infinity=False)), min_size=1))  # fmt: skip
def test_any_text_and_number_survive_csv_and_no_text_starts_a_formula(cells):
    table = TidyTable({"text": "text", "real": "real"}, [{"text": text, "real": real} for text, real in cells])
    read = pandas.read_csv(
        io.StringIO(as_csv(table), newline=""), keep_default_na=False, na_values={"real": [""]},
        dtype={"text": str, "real": float}, float_precision="round_trip", skip_blank_lines=False,
    )  # fmt: skip
    assert len(read) == len(cells)
    for (text, real), back, number in zip(cells, read.text, read.real, strict=True):
        assert not back.startswith(FORMULA_STARTS)
        assert back == (f"'{text}" if text.startswith(FORMULA_STARTS) else text)
        assert math.isnan(number) if real is None else number == real


def test_negative_numbers_stay_numbers():
    assert as_csv(TidyTable({"a": "real", "b": "integer"}, [{"a": -1.5, "b": -2}])) == "a,b\r\n-1.5,-2\r\n"


# model cards --------------------------------------------------------------------------------------------------------


def results(card: str):
    return {each.metric_type: each for each in ModelCard(card).data.eval_results}


def test_hugging_face_s_own_parser_reads_the_card_back():
    (row,) = pairs(comparison("x", seeds=3), CHANGED)
    card = model_card([row])
    found = results(card)
    assert ModelCard(card).data.model_name == "x on gpt"
    known = {name: value for name, value in row.metrics.items() if value.known}
    assert found.keys() == {f"{name}_ratio" for name in known} | {"loss"}
    for name, value in known.items():
        each = found[f"{name}_ratio"]
        assert each.metric_value == value.number
        assert each.metric_args["kind"] == value.kind
        if value.interval:
            assert (each.metric_args["low"], each.metric_args["high"]) == (value.interval.low, value.interval.high)
        assert each.metric_args["records"] == list(row.records) and each.metric_args["seeds"] == [0, 1, 2]
        assert each.metric_args["stale"] == ["x changed"] and each.metric_args["machine"] == MACHINE.name
        assert each.dataset_args == {"sha256": row.conditions.data_sha256}
        assert each.task_type == "text-generation"
    assert found["loss"].metric_value == row.metrics["loss"].contender
    assert "energy_ratio" not in found  # unknown, hence absent
    assert "verif" not in card.lower()


def test_a_card_keeps_what_is_not_ours_and_takes_our_results_once():
    row = pairs(comparison("x", seeds=2))[0]
    mine = "---\nlicense: mit\nmodel-index:\n- name: my-model\n  results:\n  - task: {type: text-generation}\n"
    mine += "    dataset: {name: Beans, type: beans}\n    metrics:\n    - {type: accuracy, value: 0.9}\n---\n# Mine\n"
    once = model_card([row], mine)
    twice = model_card([row], once)
    assert twice == once
    read = ModelCard(once)
    assert read.data.license == "mit" and read.data.model_name == "my-model"
    assert read.text.strip() == "# Mine"
    assert results(once)["accuracy"].metric_value == 0.9 and "loss" in results(once)


def test_a_card_of_several_models_is_refused():
    with pytest.raises(ValueError, match="choose with -t and -b among x on gpt, y on gpt"):
        model_card(several())


# the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    folder = tmp_path / "results"
    for each in comparison("lion", seeds=2) + comparison("sam", seeds=2):
        Store(folder).append(each)
    return folder


def export(stored, *arguments):
    return CliRunner().invoke(app, ["leaderboard", "--results", str(stored), *map(str, arguments)])


def test_the_command_writes_what_is_chosen(stored, tmp_path):
    printed = export(stored, "--format", "csv", "-t", "lion")
    assert set(frame(printed.stdout)["stack"]) == {"lion"}
    path = tmp_path / "seeds.parquet"
    assert export(stored, "--table", "replicates", "--write", path).exit_code == Exit.FINE
    written = frame(path.read_bytes())
    assert sorted(zip(written["stack"], written.seed)) == [
        ("lion", 0), ("lion", 1), ("sam", 0), ("sam", 1),
    ]  # fmt: skip
    readme = tmp_path / "README.md"
    readme.write_text("---\nlicense: mit\n---\n# Mine\n")
    assert export(stored, "--format", "model-index", "-t", "lion", "--write", readme).exit_code == Exit.FINE
    assert ModelCard.load(readme).data.license == "mit" and "loss" in results(readme.read_text())


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (("--format", "parket"), Exit.USAGE, "no format is called 'parket'; did you mean parquet"),
    (("--table", "row"), Exit.USAGE, "did you mean rows"),
    (("-t", "lionn"), Exit.USAGE, "did you mean lion"),
    (("--format", "parquet"), Exit.USAGE, "name one with --write"),
    (("--format", "model-index"), Exit.USAGE, "choose with -t and -b"),
    (("-t", "adamw"), Exit.NOTHING, "measure some with"),
])  # fmt: skip
def test_what_cannot_be_exported_gets_one_sentence(stored, arguments, code, message):
    done = export(stored, *arguments, "--json")
    assert done.exit_code == code
    assert message in done.stderr
    assert json.loads(done.stdout)["exit_code"] == code


def test_missing_pyarrow_is_said_with_its_extra_and_leaves_no_file(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = export(stored, "--write", tmp_path / "x.parquet")
    assert done.exit_code == Exit.USAGE
    assert "pip install 'leantrain[parquet]'" in done.stderr
    assert not list(tmp_path.glob("*parquet*"))
