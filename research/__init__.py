"""Studies that no command reaches: they say how far what ships can be believed, and write it. Not installed."""
