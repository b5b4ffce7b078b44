"""Streams that are closed, full, or left early: a command ends in words and the right exit code, never a traceback."""

from __future__ import annotations

import subprocess

import pytest

from tests.plugin import command


def ends(redirection: str, *arguments: str) -> tuple[int, str]:
    """Exit code, and what is said on standard error, of a command under a shell's redirection."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command(*arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("redirection", [">&-", ">&- <&-", ">&- 2>&-"])
def test_a_closed_stream_has_no_reader(redirection: str) -> None:
    assert ends(redirection, "list") == (0, "")


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("--version",), ("--help",)])
def test_lost_words_are_told_at_the_end(arguments: tuple[str, ...]) -> None:
    assert ends(">/dev/full", *arguments) == (
        5,
        "leantrain: standard output cannot be written: No space left on device\n",
    )


def test_an_exit_code_that_says_more_stays() -> None:
    code, said = ends(">/dev/full", "list", "no_such_technique")
    assert code == 2 and "no category or technique" in said and "Traceback" not in said
