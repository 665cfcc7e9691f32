"""Results as text: the status as a picture and as plain lines, JSON, and the speed of an answer."""
