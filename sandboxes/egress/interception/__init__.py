"""How every packet of a watched box comes to us: routes and rules of its own network namespace.  docs/sandboxes.md."""
