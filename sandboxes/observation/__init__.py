"""What the processes of a watched sandbox do: asked about by the kernel, judged elsewhere (egress.detectors)."""
