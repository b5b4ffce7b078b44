"""What every solver would do with a budget of memory."""
