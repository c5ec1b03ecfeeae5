"""Processor time of this side of a comparison: this process and its decoders, without its sandboxes."""

import time

import psutil

DECODER = "engine.inference.torch.decoder_main"


def processor_seconds() -> float:
    """Count this process in all its threads, and the decoders that it has now."""
    children = psutil.Process().children()
    taken = [child.cpu_times() for child in children if DECODER in child.cmdline()]
    of_decoders: float = sum(times.user + times.system for times in taken)
    return time.process_time() + of_decoders
