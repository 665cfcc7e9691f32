"""Model files that mean harm: chat templates, damaged headers and cut files, and a daemon that is given all of them."""
