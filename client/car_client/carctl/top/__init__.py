"""`carctl top`: the state of the view, its picture, and the keys that change both."""
