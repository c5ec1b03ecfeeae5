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
        raise Unfit(
            f"only {free // 2**20} MiB are free in {existing}, and Palestra needs 1024 MiB; "
            "free some, or set PALESTRA_HOME to a folder on another disk"
        )


def check_bubblewrap() -> None:
    """Root on Debian gets it installed; everybody else is asked to."""
    if shutil.which("bwrap"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "bubblewrap"]):
            subprocess.run(["apt-get", "-qq", *words], env=environment, capture_output=True)
    if not shutil.which("bwrap"):
        raise Unfit("bubblewrap (bwrap) is missing, and nothing runs without a sandbox: apt-get install bubblewrap")


def check_user_namespaces() -> None:
    sandbox = ["--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc"]
    tried = subprocess.run(["bwrap", *sandbox, "true"], capture_output=True, text=True)
    if tried.returncode:
        shown = " ".join(tried.stderr.split())[:120]
        raise Unfit(
            f"this machine gives no user namespaces ({shown}), and sandboxes need them; enable them "
            "(sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000; containers: --privileged)"
        )
