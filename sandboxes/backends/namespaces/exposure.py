"""Folders that only root may reach, shown to a bubblewrap that root starts as nobody in particular.

The folders are mounted where everybody may pass, in a mount namespace of their own, which ends with bubblewrap.  The
modes of the files in them stay what they are.
"""

import os
import shutil
from dataclasses import replace

from sandboxes.backends.namespaces.arguments import Program
from sandboxes.interface import SandboxUnavailable

PLACE = "/mnt"
SCRIPT = f"""\
mount -t tmpfs -o size=1m,mode=755 exposure {PLACE} || exit 1
number=0
while [ "$1" != -- ]; do
    mkdir {PLACE}/$number && mount --bind "$1" {PLACE}/$number || exit 1
    number=$((number + 1))
    shift
done
shift
exec "$@"
"""


def exposed(program: Program) -> tuple[list[str], Program]:
    """What to put before a command line, and the program whose folders are where that mounts them.

    An ordinary user starts bubblewrap as herself and needs nothing.
    """
    if os.geteuid() != 0:
        return [], program
    unshare = shutil.which("unshare", path="/usr/bin:/bin")
    if unshare is None:
        raise SandboxUnavailable("unshare is not installed: apt-get install util-linux")
    sources = [here for here, _ in program.folders]
    folders = tuple((f"{PLACE}/{number}", inside) for number, (_, inside) in enumerate(program.folders))
    entering = [unshare, "--mount", "--propagation", "private", "/bin/sh", "-c", SCRIPT, "sh", *sources, "--"]
    return entering, replace(program, folders=folders)
