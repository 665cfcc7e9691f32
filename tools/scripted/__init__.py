"""The real daemon on an engine that follows a script: no llama.cpp, no model file, every step at a known moment."""
