"""What a Dockerfile may name that lies outside of its folder: nothing that could mean something else tomorrow.  Pure.

The daemon, which has a network, fetches what ``FROM``, ``COPY --from`` and ``ADD`` name, whatever network the build
itself has.  Read here are the instructions of the classic builder; what it does not know fails there.
"""

import re
from collections.abc import Callable

from sandboxes.images.reference import ImageRefused

DIRECTIVE = re.compile(r"#\s*(\w+)\s*=")
BASES = (
    "name `scratch`, an earlier stage, a base by its digest (`name@sha256:...`), or an image of this registry as"
    " `palestra/NAME:TAG`"
)
FLAGS = re.compile(r"(?:--\S+\s+)*")
ARRAY = re.compile(r'\[\s*"[^"\\]*"(?:\s*,\s*"[^"\\]*")*\s*\]')
REPLACED = re.compile(r"[$\\'\"]")
"""What the builder makes something else of: variables, escapes, quotes."""
PINNED = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


def check(text: str, is_registered: Callable[[str], bool]) -> None:
    """Raises ``ImageRefused``.  ``is_registered``: whether ``NAME:TAG`` is in the registry, and the daemon has it."""
    stages: list[str] = ["scratch"]

    def check_base(base: str, line: str) -> None:
        own = base.removeprefix("palestra/")
        if base.lower() in stages or PINNED.fullmatch(base) or (own != base and is_registered(own)):
            return
        raise ImageRefused("Dockerfile", line, f"the base {base!r} may be another one tomorrow", BASES)

    for line in instructions(text):
        words = line.split()
        verb, flags = words[0].upper(), [word for word in words[1:] if word.startswith("--")]
        plain = [word for word in words[1:] if not word.startswith("--")]
        if verb == "FROM":
            check_base(plain[0] if plain else "", line)
            if len(plain) == 3 and plain[1].upper() == "AS":
                stages.append(plain[2].lower())
        elif verb == "COPY":
            for flag in flags:
                source = flag.removeprefix("--from=")
                if source != flag and not source.isdigit():
                    check_base(source, line)
        elif verb == "ADD":
            _check_added(line)
        elif verb in ("ONBUILD", "VOLUME"):
            raise ImageRefused("Dockerfile", line, f"an image with {verb} makes no sandbox", f"leave {verb} out")


def _check_added(line: str) -> None:
    """An ``ADD`` names files of the folder, as they are called.  Raises ``ImageRefused``."""
    given = FLAGS.sub("", line[len("ADD") :].strip(), count=1)
    words = re.findall(r'"([^"]*)"', given) if ARRAY.fullmatch(given) else given.split()
    if any("://" in word or word.startswith("git@") for word in words):
        raise ImageRefused("Dockerfile", line, "the daemon would fetch it", "put the file into the folder, and COPY it")
    if any(REPLACED.search(word) for word in words[:-1]) or (given.startswith("[") and not ARRAY.fullmatch(given)):
        raise ImageRefused(
            "Dockerfile", line, "what it adds may be an address in the end", "write sources without $, \\ and quotes"
        )


def instructions(text: str) -> list[str]:
    """Each on one line, without comments.  Raises ``ImageRefused`` for a directive: it may change what lines mean."""
    found: list[str] = []
    rest = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            if not found and not rest and DIRECTIVE.match(stripped):
                raise ImageRefused("Dockerfile", stripped, "directives are not supported", "leave this line out")
            continue
        if not stripped:
            continue
        rest += line.rstrip()
        if rest.endswith("\\"):
            rest = rest[:-1]
            continue
        found.append(rest.strip())
        rest = ""
    return [*found, *([rest.strip()] if rest.strip() else [])]
