"""Sandboxes that a sandbox service keeps: its language, and the client that looks like any other sandbox."""
