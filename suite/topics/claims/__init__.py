"""The papers' claims on the board."""
