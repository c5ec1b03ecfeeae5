"""What computes advantages: one module for each estimator whose maths needs tensors, and one for all others."""
