"""Topics: each brings its data, its logic and its section of the board in one room."""
