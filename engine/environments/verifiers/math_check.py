"""Whether two texts of mathematics are equal; as a program, which checks each pair in a child that can be ended.

    python3 -I math_check.py     {"expected", "result", "digits"} a line  ->  "equal", "differs" or "fault ..." a line

The library and sympy are loaded once; a child of the process, bounded in time and memory, reads each hostile text.
Texts are read by the grammar of LaTeX alone: no other way leads into sympy's own parser, which evaluates Python.
"""

import json
import os
import resource
import select
import signal
import sys
import time

CHECK_S = 5
MEMORY_BYTES = 2**30
"""The memory of a child, beside what the library takes."""


def are_equal(expected: str, result: str, digits: int) -> bool:
    """Neither text is evaluated before it has been read as LaTeX."""
    from math_verify import verify

    return bool(verify(_read(expected), _read(result), float_rounding=digits, timeout_seconds=None))


def _read(text: str) -> list[object]:
    from math_verify import LatexExtractionConfig, parse

    delimited = text if "$" in text or "\\boxed" in text else f"${text}$"
    return list(parse(delimited, extraction_config=[LatexExtractionConfig()], parsing_timeout=None))


def _child(document: dict[str, object], writes: int) -> None:
    """Never returns."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CHECK_S, CHECK_S))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        found = "equal" if are_equal(**document) else "differs"  # type: ignore[arg-type]
    except BaseException as error:  # whatever it is, it is no reward
        found = f"fault {type(error).__name__}: {error}"
    os.write(writes, " ".join(found[:300].split()).encode())
    os._exit(0)


def checked(document: dict[str, object]) -> str:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _child(document, writes)
    os.close(writes)
    found, until = b"", time.monotonic() + CHECK_S
    while (left_s := until - time.monotonic()) > 0 and select.select([reads], [], [], left_s)[0]:
        if not (part := os.read(reads, 4096)):
            break
        found += part
    os.close(reads)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not found:
        return f"fault not checked within {CHECK_S} s" if left_s <= 0 else "fault the check ended without a result"
    return found.decode("utf-8", "replace")


def _main() -> None:
    import logging

    logging.disable()
    are_equal("1", "1", 6)  # loads the library, so that no child has to
    for line in sys.stdin:
        sys.stdout.write(checked(json.loads(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
