"""What a step takes on a GPU that is not here, modelled from its operators."""
