"""The trainer backend on megatron-core, ``resources.trainer = "megatron"``: docs/backends.md."""
