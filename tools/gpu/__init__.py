"""llama.cpp built for a GPU from the binding's own source, and a suite that checks card on that GPU."""
