"""What must be true of the machine before anything starts; each refusal is one line with its remedy."""

import os
import shutil
import subprocess
from pathlib import Path

from devtools.errors import Unfit

FREE_DISK_BYTES = 2**30


def check_machine(home: Path) -> None:
    check_disk(home)
    check_bubblewrap()
    check_user_namespaces()


def check_disk(home: Path) -> None:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < FREE_DISK_BYTES:
        raise Unfit(f"only {free // 2**20} MiB are free in {existing}; Palestra needs 1024 MiB: free some, or set PALESTRA_HOME")


def check_bubblewrap() -> None:
    """Root on Debian gets it installed; everybody else is asked to."""
    if shutil.which("bwrap"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=environment, **quiet)
        subprocess.run(["apt-get", "install", "-qq", "-y", "bubblewrap"], env=environment, **quiet)
    if not shutil.which("bwrap"):
        raise Unfit("bubblewrap (bwrap) is missing, and no code may run without a sandbox; install it: apt-get install bubblewrap")


def check_user_namespaces() -> None:
    box = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(box, capture_output=True, text=True)
    if tried.returncode:
        said = " ".join(tried.stderr.split())[:120]
        raise Unfit(
            f"this machine gives no user namespaces ({said}), and sandboxes need them; enable them "
            "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000; containers: --privileged)"
        )
