"""The ways to make a box.  Nothing outside ``sandboxes`` imports from here."""
