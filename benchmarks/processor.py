"""Processor time of this side of a comparison: this process and its decoders, without its sandboxes."""

import functools
import time

import psutil

DECODER = "engine.inference.torch.decoder_main"


def processor_seconds() -> float:
    """Count this process in all its threads, and the decoders that it had when this was called first."""
    return time.process_time() + sum(map(_seconds, _decoders()))


@functools.cache
def _decoders() -> list[psutil.Process]:
    """Looked for once: there are hundreds of sandboxes beside them, and our steps are timed."""
    return [child for child in psutil.Process().children() if _is_decoder(child)]


def _is_decoder(child: psutil.Process) -> bool:
    """Sandboxes come and go."""
    try:
        return DECODER in child.cmdline()
    except psutil.NoSuchProcess:
        return False


def _seconds(decoder: psutil.Process) -> float:
    times = decoder.cpu_times()
    return float(times.user + times.system)
