"""Environments that run in a process of their own: what the engine asks them, and how it outlives them."""
