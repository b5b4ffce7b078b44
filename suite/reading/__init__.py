"""Recorded steps, read from outside: what probes see."""
