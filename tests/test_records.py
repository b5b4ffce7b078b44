import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite import records as module
from suite.records import SCHEMA_VERSION, Store, StoreError, parse
from tests.factories import MACHINE, changed, comparison


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "results")
    with made.writing(MACHINE.name):
        yield made


def test_what_is_appended_is_read_back_in_order_of_time(store):
    made = comparison("x", seeds=3)
    for each in (made[2], made[0], made[1]):
        store.append(each)
    assert store.read() == (made, [])


def test_numbers_that_are_not_finite_come_back(store):
    (made,) = changed(comparison("x", seeds=1), probes={"x.ratio": float("inf")}, train_loss=[1.0, float("nan")])
    store.append(made)
    (back,), problems = store.read()
    assert not problems
    assert back.contenders[1].probes == {"x.ratio": float("inf")}
    assert back.contenders[1].train_loss[1] != back.contenders[1].train_loss[1]


def test_folders_of_two_machines_merge_with_cat_and_no_record_counts_twice(store, tmp_path):
    here, there = comparison("x", seeds=2), comparison("y", seeds=1)
    for each in here:
        store.append(each)
    elsewhere = tmp_path / "results" / "other" / "records.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(there[0].model_dump_json().encode() + b"\n" + store.path(MACHINE.name).read_bytes())
    read, problems = store.read()
    assert not problems
    assert {each.id for each in read} == {each.id for each in here + there}


def test_damaged_lines_are_named_left_out_and_left_in_place(store):
    made = comparison("x", seeds=2)
    store.append(made[0])
    path = store.path(MACHINE.name)
    good = path.read_bytes()
    path.write_bytes(good[:100] + b"\n" + b"\xff\xfe\x00\n" + b"[1, 2]\n" + b"null\n" + b"{}\n" + b"\n" + good)
    before = path.read_bytes()
    read, problems = store.read()
    assert read == made[:1]
    assert [problem.split(":")[1] for problem in problems] == ["1", "2", "3", "4", "5"]
    store.append(made[1])
    assert path.read_bytes().startswith(before)
    assert store.read()[0] == made


def test_a_line_that_a_crash_cut_off_does_not_damage_the_next(store):
    made = comparison("x", seeds=2)
    store.append(made[0])
    path = store.path(MACHINE.name)
    path.write_bytes(path.read_bytes() + made[1].model_dump_json().encode()[:50])
    store.append(made[1])
    read, problems = store.read()
    assert read == made
    assert len(problems) == 1


def test_a_newer_schema_asks_for_an_update():
    newer = json.loads(comparison("x", seeds=1)[0].model_dump_json()) | {"schema_version": SCHEMA_VERSION + 1, "new": 1}
    with pytest.raises(ValueError, match=f"{SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}; update leantrain"):
        parse(json.dumps(newer))


def test_an_unreadable_field_is_named():
    wrong = json.loads(comparison("x", seeds=1)[0].model_dump_json())
    wrong["contenders"][1]["setup_s"] = "soon"
    with pytest.raises(ValueError, match=r"contenders\.1\.setup_s"):
        parse(json.dumps(wrong))


@given(st.one_of(st.binary(), st.text(), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps)))
def test_no_line_raises_anything_but_one_sentence(line):
    with pytest.raises(ValueError) as error:
        parse(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("written_before", [0, 10, 1000])
def test_a_full_disk_costs_this_replicate_and_nothing_else(store, monkeypatch, written_before):
    made = comparison("x", seeds=2)
    store.append(made[0])
    before = store.path(MACHINE.name).read_bytes()
    write, left = os.write, written_before

    def full(handle, data):
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(handle, data[:left])  # a short write first, as the kernel does when little room is left
        left -= count
        return count

    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(StoreError, match="the disk is full; what was measured before is kept"):
        store.append(made[1])
    monkeypatch.undo()
    assert store.path(MACHINE.name).read_bytes() == before
    store.append(made[1])
    assert store.read() == (made, [])


def test_a_real_limit_of_the_kernel_leaves_whole_lines(store):
    """With RLIMIT_FSIZE the kernel itself writes half of the line and then refuses."""
    made = comparison("x", seeds=2)
    store.append(made[0])
    before = store.path(MACHINE.name).read_bytes()
    room = len(before) + 500
    code = (
        "import sys; from pathlib import Path; from suite.records import Store, StoreError, parse\n"
        "try: Store(Path(sys.argv[1])).append(parse(sys.stdin.buffer.read()))\n"
        "except StoreError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.folder)],
        input=made[1].model_dump_json().encode(),
        capture_output=True,
        check=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert b"cannot write" in done.stdout
    assert store.path(MACHINE.name).read_bytes() == before


def second_writer(folder: Path) -> str:
    code = (
        "import sys; from pathlib import Path; from suite.records import Store, StoreError\n"
        "try:\n"
        "    with Store(Path(sys.argv[1])).writing(sys.argv[2]): print('writing')\n"
        "except StoreError as error: print(error)"
    )
    arguments = [sys.executable, "-c", code, str(folder), MACHINE.name]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_second_process_cannot_write_to_the_same_folder(tmp_path):
    store = Store(tmp_path)
    with store.writing(MACHINE.name):
        said = second_writer(tmp_path)
        assert "another run is writing" in said
        assert "--out" in said
        store.append(comparison("x", seeds=1)[0])
    assert second_writer(tmp_path) == "writing\n"


def test_the_lock_of_a_process_that_died_holds_nobody(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from suite.records import Store\n"
        "with Store(Path(sys.argv[1])).writing(sys.argv[2]): os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), MACHINE.name], check=False, timeout=60)
    with Store(tmp_path).writing(MACHINE.name):
        pass


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another folder with --out"), Store(tmp_path / "file").writing("m"):
        pass
