"""The reference generator: exact, on torch, with its own KV cache."""
