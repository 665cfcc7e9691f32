"""What holds for all tests."""

import signal

# A shell that runs the tests in the background has them ignore interrupts, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
