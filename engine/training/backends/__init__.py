"""Where weights live and are moved: one protocol, one module for each backend."""
