"""In the place of vllm, whose CUDA kernels SGLang names and a CPU never calls."""
