"""Processor time of this side of a comparison: this process and its decoders, without its sandboxes."""

import time

import psutil

DECODER = "engine.inference.torch.decoder_main"


def processor_seconds() -> float:
    """Count this process in all its threads, and the decoders that it has now."""
    return time.process_time() + sum(map(_decoder_seconds, psutil.Process().children()))


def _decoder_seconds(child: psutil.Process) -> float:
    """0 for what is no decoder, or has just ended: sandboxes come and go."""
    try:
        times = child.cpu_times() if DECODER in child.cmdline() else None
    except psutil.NoSuchProcess:
        return 0.0
    return 0.0 if times is None else float(times.user + times.system)
