"""How every packet of a watched sandbox comes to us: routes and rules of its own network namespace.
docs/sandboxes.md."""
