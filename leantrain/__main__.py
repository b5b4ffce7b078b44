"""Runs ``python -m leantrain``: the command line."""

from suite.cli import main

main()
