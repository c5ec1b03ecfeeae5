"""A root file system without any registry: this machine's own Python, shell and a few programs, as a tar."""

import glob
import os
import re
import subprocess
import tarfile
from pathlib import Path

PYTHON = os.path.realpath("/usr/bin/python3")
PROGRAMS = """
base64 basename cat chmod cmp comm cp cut date dd df diff dirname du echo env expr false find grep gzip head id kill ln
ls mkdir mkfifo mount mv nl nproc od paste printf ps pwd readlink realpath rm rmdir sed seq setsid sha256sum sleep sort
split stat su tail tar tee test timeout touch tr true uname uniq wc xargs yes
"""
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data", "distutils"}
LIBRARY = re.compile(r"(/\S+) \(0x")


def write(path: Path, *, python: bool = True, shell: bool = True) -> Path:
    """Write the tar.  Nothing but ``/work`` and ``/tmp`` is there beside the programs and what they load."""
    files = {f"/usr/bin/{name}" for name in PROGRAMS.split() if os.path.exists(f"/usr/bin/{name}")}
    links = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"}
    if shell:
        files.add(os.path.realpath("/bin/sh"))
        links["/usr/bin/sh"] = os.path.basename(os.path.realpath("/bin/sh"))
    library = _standard_library() if python else ""
    if python:
        files.add(PYTHON)
        links["/usr/bin/python3"] = os.path.basename(PYTHON)
    loaded = _libraries([*files, *(glob.glob(f"{library}/lib-dynload/*.so") if python else ())])
    with tarfile.open(path, "w") as tar:
        for folder in ("usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "work", "tmp", "dev", "proc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for link, target in links.items():
            entry = tarfile.TarInfo(link[1:])
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for file in sorted(files):
            tar.add(os.path.realpath(file), file[1:])
        tar.add(os.path.realpath("/usr/bin/sleep"), "usr/bin/sleep-as-root", filter=_of_root)
        for place, name in sorted({_below_usr(name): name for name in loaded}.items()):
            tar.add(os.path.realpath(name), place)
        if python:
            tar.add(library, library[1:], filter=_kept)
    return path


def _standard_library() -> str:
    asked = [PYTHON, "-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _libraries(programs: list[str]) -> set[str]:
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    return set(LIBRARY.findall(listed))


def _below_usr(library: str) -> str:
    """Where it is behind the links from /lib and /lib64."""
    return library[1:] if library.startswith("/usr/") else f"usr{library}"


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whoever starts it becomes root, were it not for what a container forbids."""
    entry.uid = entry.gid = 0
    entry.mode = 0o6755
    return entry


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if LEFT_OUT & set(entry.name.split("/")) or "site-packages" in entry.name else entry
