"""Every entry counted at a billion parameters, in seconds of one core: ``python -m tests.numbers.at_1b [--into FILE]``.

A step of a Llama of 1.1 billion parameters (22 layers of width 2048, TinyLlama's shape) on tensors without values, as
``leantrain count -t ID -b gpt --model FOLDER`` counts it. An entry is counted, refuses the model or says which value it
asks for, all within the minute of a core that ``count`` gives; else it is named as late, with the line that ran when
the minute was over. ``--into FILE`` keeps what was seen, and goes on with what is there and of the same code.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from suite.entries.catalogue import catalogue
from suite.entries.sources import code_of
from suite.measure.at_scale.full_size import STEPS, Scale, counted
from suite.measure.at_scale.processor_limit import OutOfTime, processor_limit
from suite.measure.contenders.child import ContenderFailed, Deputy
from suite.record.job import BASELINE, Setting
from suite.topics.modelled_time.aside import CORE_S, LIMIT_S, deputy, heap_set_aside

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
Seen = dict[str, Any]
"""Of an entry: its name, the code, the seconds of a core, how it ended and why."""


def folder_of_llama(parent: Path) -> Path:
    """A model folder without weights."""
    folder = parent / "llama"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder


def _counted(stack: str, scale: Scale, core_s: float) -> Seen:
    """In a process that is a deputy."""
    torch.set_num_threads(1)
    began_s = time.process_time()
    end, why, parameters = "counted", "", 0
    try:
        with processor_limit(core_s), heap_set_aside():
            step = counted(stack, scale)
        if step.counters is None:
            end, why = "unavailable", step.unavailable
        else:
            parameters = step.counters.parameter_count
    except OutOfTime as error:
        end, why = "late", str(error)
    except ValueError as error:
        end, why = "refused", str(error)
    return {"end": end, "why": why, "core_s": round(time.process_time() - began_s, 1), "parameters": parameters}


def one(counting: Deputy, stack: str, setting: Setting, core_s: float) -> Seen:
    """One entry's count, in the task of its card."""
    task = catalogue()[stack].card.task if stack != BASELINE else setting.task
    at = setting.but(task=task, steps=STEPS)
    code = code_of(at, stack).counts
    try:
        seen = counting(_counted, stack, Scale(at), core_s)
    except ContenderFailed as failure:
        seen = {"end": failure.status, "why": failure.reason, "core_s": None, "parameters": 0}
    if seen["end"] == "late":
        counting.close()  # its process may be in any state
    return {"stack": stack, "code": code} | seen


def show(seen: Iterable[Seen]) -> None:
    """Prints the slowest, and whatever was not counted, with why."""
    known = sorted(seen, key=lambda each: -(each["core_s"] or float("inf")))
    table = Table("entry", "ended", "core seconds", "why", box=None, pad_edge=False)
    slowest = {each["stack"] for each in known[:10]}
    for each in known:
        if each["end"] != "counted" or each["stack"] in slowest:
            table.add_row(each["stack"], each["end"], str(each["core_s"]), each["why"][:300])
    console = Console(width=160, highlight=False)
    console.print(table)
    ends = [each["end"] for each in known]
    tally = ", ".join(f"{end} {ends.count(end)}" for end in dict.fromkeys(ends))
    largest = max((each["parameters"] for each in known), default=0)
    console.print(f"{len(known)} entries at {largest / 1e9:.2f} billion parameters: {tally}")
    late = [each["stack"] for each in known if each["end"] not in ("counted", "unavailable", "refused")]
    console.print(f"late or failed: {', '.join(late) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.at_1b", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-t", dest="stacks", action="append", help="an entry; repeatable [all]")
    parser.add_argument("--seconds", type=float, default=CORE_S, help=f"of a core, for each [{CORE_S:g}]")
    parser.add_argument("--into", type=Path, help="keeps what was seen, a line of JSON each")
    chosen = parser.parse_args()
    known: dict[str, Seen] = {}
    if chosen.into and chosen.into.exists():
        known = {each["stack"]: each for each in map(json.loads, chosen.into.read_text("utf-8").splitlines())}
    with tempfile.TemporaryDirectory() as scratch, deputy(max(LIMIT_S, 20 * chosen.seconds)) as counting:
        setting = Setting(baseline="gpt", size="base", model=str(folder_of_llama(Path(scratch))), device="cuda")
        for stack in chosen.stacks or catalogue():
            task = catalogue()[stack].card.task
            before = known.get(stack)
            if before and before["code"] == code_of(setting.but(task=task, steps=STEPS), stack).counts:
                continue
            known[stack] = one(counting, stack, setting, chosen.seconds)
            if chosen.into:
                with chosen.into.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[stack]) + "\n")
            Console().print({name: known[stack][name] for name in ("stack", "end", "core_s")}, soft_wrap=True)
    show([known[stack] for stack in chosen.stacks or catalogue() if stack in known])


if __name__ == "__main__":
    main()
