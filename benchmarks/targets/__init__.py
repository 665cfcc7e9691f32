"""What is compared: each target runs one case and says its figures."""
