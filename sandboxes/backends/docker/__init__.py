"""Sandboxes that are containers of a Docker daemon on this machine.  docs/sandboxes.md, "Sandboxes of Docker"."""
