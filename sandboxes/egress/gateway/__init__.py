"""The only way out of a watched box: it decides, forwards or refuses, counts, and records.  docs/sandboxes.md."""
