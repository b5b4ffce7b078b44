"""Other packages' implementations, beside ours."""
