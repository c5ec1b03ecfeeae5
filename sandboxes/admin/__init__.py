"""Several hosts of sandboxes behind one address: one queue, one set of tokens, each sandbox where there is room."""
