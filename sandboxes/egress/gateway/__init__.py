"""The only way out of a watched sandbox: it decides, forwards or refuses, counts, and records.  docs/sandboxes.md."""
