"""Judges runs that leantrain never saw: reads their logs, guesses columns and says so, compares, warns, shows."""
