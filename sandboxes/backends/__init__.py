"""The ways to make a sandbox.  Nothing outside ``sandboxes`` imports from here."""
