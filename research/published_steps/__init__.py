"""Steps that others measured and published: the rows, their traces, and how well the model tells them."""
