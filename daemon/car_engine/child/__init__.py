"""A disposable process that answers one frame with one frame: what strangers send is prepared in it."""
