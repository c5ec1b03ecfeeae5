"""Where untrusted code runs.  ``sandboxes.interface`` is the facade; everything behind it may change."""
