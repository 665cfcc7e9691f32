"""The declaration of capacity, and the measured cost curve that it uses."""
