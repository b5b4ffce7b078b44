"""Runs ``python -m suite.cli``."""

from suite.cli import main

main()
