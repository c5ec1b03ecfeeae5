"""Sandboxes over HTTP: ``python -m sandboxes serve``.  docs/sandbox-service.md says who may do what."""
