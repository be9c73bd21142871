"""Prompts in: what people keep them in, and the built-in set."""
