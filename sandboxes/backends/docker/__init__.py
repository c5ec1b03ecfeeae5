"""Boxes that are containers of a Docker daemon on this machine.  docs/sandboxes.md, "Boxes of Docker"."""
