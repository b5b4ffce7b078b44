"""The board: what the records say, for people."""
