"""Makes what Alpaca-LoRA is measured on: instructions about words and small numbers in its schema, the same at every
call.

Numbers are words, since the CPU sizes read letters alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

ENTRIES = 2000
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = (
    "apple bread chair cloud dance eagle flame grape house island jelly knife lemon mouse night ocean paper queen "
    "river stone table uncle voice water zebra bridge candle desert engine forest garden hammer jacket kitchen ladder "
    "market needle orange pencil rocket silver ticket valley window yellow anchor basket carpet dinner energy family "
    "gentle honest insect jungle kettle listen mirror nation office palace quiet random school useful velvet winter"
)
SMALL, TENS, WORDS = _SMALL.split(), _TENS.split(), _WORDS.split()
Entry = dict[str, str]


def number(value: int) -> str:
    """Writes a number below 200 in words."""
    if value >= 100:
        rest = value - 100
        return "one hundred" + (f" and {number(rest)}" if rest else "")
    if value < len(SMALL):
        return SMALL[value]
    tens, ones = divmod(value, 10)
    return TENS[tens - 2] + (f" {SMALL[ones]}" if ones else "")


def entry(instruction: str, context: str, answer: str) -> Entry:
    return {"instruction": instruction, "input": context, "output": answer}


def added(draw: random.Random) -> Entry:
    one, other = draw.randrange(100), draw.randrange(100)
    return entry("Add the two numbers.", f"{number(one)} and {number(other)}", f"{number(one + other)}.")


def larger(draw: random.Random) -> Entry:
    one, other = draw.sample(range(100), 2)
    return entry("Name the larger number.", f"{number(one)} or {number(other)}", f"{number(max(one, other))}.")


def following(draw: random.Random) -> Entry:
    value = draw.randrange(150)
    return entry(f"Which number comes after {number(value)}?", "", f"{number(value + 1)}.")


def spelled(draw: random.Random) -> Entry:
    word = draw.choice(WORDS)
    return entry("Spell the word letter by letter.", word, " ".join(word))


def reversed_word(draw: random.Random) -> Entry:
    word = draw.choice(WORDS)
    return entry("Write the word backwards.", word, word[::-1])


def sorted_words(draw: random.Random) -> Entry:
    words = draw.sample(WORDS, 3)
    return entry("Put the words in alphabetical order.", " ".join(words), " ".join(sorted(words)))


def first_letter(draw: random.Random) -> Entry:
    word = draw.choice(WORDS)
    return entry(f"With which letter does {word} begin?", "", f"It begins with {word[0]}.")


def counted(draw: random.Random) -> Entry:
    word = draw.choice(WORDS)
    return entry("How many letters does the word have?", word, f"{number(len(word))} letters.")


TASKS: tuple[Callable[[random.Random], Entry], ...] = (
    added,
    larger,
    following,
    spelled,
    reversed_word,
    sorted_words,
    first_letter,
    counted,
)


def entries(count: int = ENTRIES, seed: int = 0) -> list[Entry]:
    """Draws ``count`` entries, the kinds of tasks in turn."""
    draw = random.Random(seed)
    return [TASKS[place % len(TASKS)](draw) for place in range(count)]


def as_text() -> str:
    """Returns a JSON list, an entry a line."""
    return "[\n" + ",\n".join(json.dumps(entry) for entry in entries()) + "\n]\n"
