"""Pure maths: tensors in, tensors out.  No Ray, no I/O, no global state."""
