"""The questions: one file for each, or for a closely related group."""
