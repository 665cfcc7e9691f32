"""`carctl models`: the table of models, and the page of one."""
