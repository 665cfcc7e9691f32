"""Models of the Hugging Face hub: download, check, removal."""
