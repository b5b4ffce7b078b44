"""Reads recorded steps from outside: what probes see."""
