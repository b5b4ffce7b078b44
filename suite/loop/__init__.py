"""What decides a number: techniques and their stack, the run, its recipe, data and sites, the baseline."""
