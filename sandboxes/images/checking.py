"""Whether sandboxes can be made of an image: it needs /bin/sh and a Python for the agent, and must bring nothing
along."""

import secrets
from typing import Any

import docker
from docker.errors import APIError

from sandboxes.backends.docker import container, daemon
from sandboxes.backends.docker.stream import HEAD, STDOUT
from sandboxes.backends.namespaces.limits import NOBODY
from sandboxes.images.reference import ImageRefused
from sandboxes.spec import SandboxSpec

OLDEST = (3, 10)
NO_PYTHON, TOO_OLD, INCOMPLETE = 41, 42, 43
LOOK = f"""\
found="$(command -v python3)" || exit {NO_PYTHON}
exec "$found" -S -s -B -c '
import sys
if sys.version_info < {OLDEST}: sys.exit({TOO_OLD})
try:
    import _ast, _ctypes, _signal, _socket, marshal, resource, select, struct
except ImportError:
    sys.exit({INCOMPLETE})
print(sys.argv[1])' "$found"
"""
ANSWER_BYTES = 4096
OLDEST_NAME = ".".join(map(str, OLDEST))
PROBLEMS = {
    NO_PYTHON: "it has no python3 in its PATH",
    TOO_OLD: f"its python3 is older than {OLDEST_NAME}",
    INCOMPLETE: "its python3 lacks a module of the standard library (_ctypes, resource, select ...)",
}
REMEDY = f"add a complete Python {OLDEST_NAME} or later to the image (Debian: apt-get install python3)"


def python_of(client: docker.APIClient, image: dict[str, Any]) -> str:
    """The path of its Python, looked for in a container that is as closed as a sandbox.  Raises ``ImageRefused``."""
    config = image.get("Config") or {}
    if config.get("Volumes"):
        problem = f"it declares volumes ({', '.join(sorted(config['Volumes']))}), which no limit of a sandbox counts"
        raise ImageRefused("image", image["Id"], problem, "make it without VOLUME")
    if config.get("OnBuild"):
        raise ImageRefused("image", image["Id"], "it acts when it is built upon", "make it without ONBUILD")
    name = f"palestra-{secrets.token_hex(8)}"
    limits = container.settings(SandboxSpec(backend="docker", image=image["Id"], memory_mib=256), NOBODY)
    with daemon.refusals():
        try:
            container.create(client, name, image["Id"], ["/bin/sh", "-c", LOOK], limits, NOBODY)
            with daemon.attached(name) as stream:
                stream.settimeout(daemon.ANSWER_S)
                _start(client, name, image)
                received = stream.recv(ANSWER_BYTES)
                code = client.wait(name, timeout=daemon.ANSWER_S)["StatusCode"]
        finally:
            container.remove_if_there(client, name)
    if code in PROBLEMS:
        raise ImageRefused("image", image["Id"], PROBLEMS[code], REMEDY)
    kind, size = HEAD.unpack(received[: HEAD.size]) if len(received) > HEAD.size else (0, 0)
    text = received[HEAD.size : HEAD.size + size].decode("utf-8", "replace").strip()
    if code != 0 or kind != STDOUT or not text.startswith("/"):
        raise ImageRefused("image", image["Id"], f"its /bin/sh or python3 does not work (exit {code}): {text}", REMEDY)
    return text


def _start(client: docker.APIClient, name: str, image: dict[str, Any]) -> None:
    try:
        client.start(name)
    except APIError as error:
        if "/bin/sh" in str(error.explanation) and "no such file" in str(error.explanation):
            remedy = "add a shell to the image (Debian: apt-get install dash)"
            raise ImageRefused("image", image["Id"], "it has no /bin/sh", remedy) from None
        raise
