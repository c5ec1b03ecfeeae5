"""EnvHub: which images sandboxes of Docker may be made of, pinned by digest.  docs/images.md."""
