"""A disposable process in which what strangers send is prepared."""
