"""Files that people write, a sweep and a card, changed at random: the command says what is wrong and where, and no
other card is lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, Place, at_once, place

SWEEP = """\
technique = ["lion", "sam:rho=0.1"]
on = ["gpt"]
sizes = ["pico"]
steps = 6
seeds = 2
hang-limit = 30
recipe = "modern"
"""
BOMBS = (
    "a = " + "[" * 5000 + "]" * 5000,
    ".".join(["a"] * 5000) + " = 1",
    "steps = " + "9" * 5000,
    'on = ["' + "g" * 10**6 + '"]',
    "steps = nan",
    "steps = -0x1",
    "on = []",
    "[[on]]\n" * 2000,
    "\0",
    "steps = 2020-01-01",
)
WORDS = (*'\0"[]=\n#é\u202e', "\x1b[2J", "'''", "-1", "nan", "1e999", "true", "{}", "9" * 40)


def attack(scale: Scale) -> Iterator[Row]:
    sweeps = [*BOMBS, *(changed(SWEEP, random.Random(seed)) for seed in range(scale.trials(60)))]
    with place({"still": "pass"}) as at, at_once() as pool:
        yield row(
            "a sweep with an odd value, character or bomb",
            Counter(pool.map(lambda each: swept(at, *each), enumerate(sweeps))),
        )
    with at_once() as pool:
        yield row(
            "a plug-in's card with an odd value, character or bomb", Counter(pool.map(carded, range(scale.trials(40))))
        )


def changed(text: str, coin: random.Random) -> str:
    """The text with one to three pieces replaced, taken away or put in."""
    for _ in range(coin.randint(1, 3)):
        at = coin.randrange(len(text))
        text = text[:at] + coin.choice((*WORDS, "")) + text[at + coin.randint(0, 8) :]
    return text


def swept(at: Place, number: int, text: str) -> str:
    """One trial, in words."""
    path = at.folder / f"{number}.toml"
    path.write_bytes(text.encode())
    process = at.start("run", path, "--dry-run")
    told = process.communicate(timeout=LIMIT_S)[1].decode("utf-8", "replace")
    if "Traceback" in told or "\x1b[2J" in told:
        return f"sweep {number}: {told.splitlines()[-1]}"
    return "held" if process.returncode in (0, 2, 4, 6) else f"sweep {number}: exit code {process.returncode}"


def carded(seed: int) -> str:
    """One trial, in words."""
    coin = random.Random(seed)
    with place({"odd": "pass", "still": "pass"}) as at:
        card = Path(at.folder, "planted_faults", "planted", "odd", "card.toml")
        text = coin.choice(BOMBS) if coin.random() < 0.2 else changed(card.read_text(), coin)
        card.write_bytes(text.encode())
        process = at.begin("list", "--json")
        printed, told = process.communicate(timeout=LIMIT_S)
        if b"Traceback" in told or process.returncode:
            return f"card {seed}: exit code {process.returncode}: {told.splitlines()[-1:]}"
        listed = {each["id"]: each for each in json.loads(printed)}
        if not {"lion", "still", "odd"} <= listed.keys():
            return f"card {seed}: a card is neither shown nor named"
        return "held"
