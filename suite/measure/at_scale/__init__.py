"""What is counted and modelled at the paper's size, without weights."""
