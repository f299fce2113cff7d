"""What all frameworks have in common: one operator called from Python, timed as users run it."""
