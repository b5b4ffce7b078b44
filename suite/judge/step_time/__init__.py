"""What a step takes on a device that is not here, modelled from its operators, and how far that is to be believed."""
