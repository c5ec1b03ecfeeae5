"""Sandboxes made of Linux namespaces by bubblewrap, served by an agent that is their first process."""
