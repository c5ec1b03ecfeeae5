"""EnvHub: which images boxes of Docker may be made of, pinned by digest.  docs/images.md."""
