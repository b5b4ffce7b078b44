"""The leaderboard: rows as boards (board.py), as Markdown, as one HTML file, as a figure."""
