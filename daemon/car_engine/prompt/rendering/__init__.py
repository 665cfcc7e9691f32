"""The text that a chat template writes: the variables it gets, in the form that it reads."""
