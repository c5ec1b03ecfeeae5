"""Files of a sandbox, opened by the agent on behalf of the host.

Guests prepare these paths, links included.  That gains them nothing: the agent sees the same file
systems as they do.  Only /proc is different, because there ``self`` would be the agent.
"""

import errno
import fcntl
import os
import stat

WRITABLE = (
    "/work", "/tmp", *(place for place in ("/dev/shm", "/tests", "/solution", "/logs") if os.path.ismount(place))
)  # fmt: skip
"""A container's /dev/shm is a file system of its own, and so are the folders of a terminal task; elsewhere they are
links to below /tmp, but for the /dev/shm of a sandbox that has terminals."""
HOME = "/work"
SET_FLAGS = 0x40086602
"""``FS_IOC_SETFLAGS``."""
OPEN_SAFELY = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a fifo must not hold the agent up


def read_file(path: str, limit_bytes: int) -> bytes:
    fd = os.open(os.path.join(HOME, path), os.O_RDONLY | OPEN_SAFELY)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(found.st_mode) or found.st_dev == os.stat("/proc").st_dev:
            raise OSError(errno.EACCES, "not a regular file")
        if found.st_size > limit_bytes:
            raise OSError(errno.EFBIG, "larger than the limit")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(limit_bytes + 1)
    finally:
        os.close(fd)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, "larger than the limit")
    return content


def write_file(path: str, content: bytes) -> None:
    path = os.path.join(HOME, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Look before truncating: the path may be a link to something that is no file of ours.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | OPEN_SAFELY, 0o644)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_dev not in [os.stat(root).st_dev for root in WRITABLE]:
            raise OSError(errno.EACCES, "not a regular file under " + " or ".join(WRITABLE))
        os.ftruncate(fd, 0)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
    finally:
        os.close(fd)


def wipe() -> None:
    """Leave the writable file systems as they were mounted.  Raises ``OSError`` where it cannot."""
    for root in WRITABLE:
        os.chmod(root, 0o755 if root == HOME else 0o1777)
        for name in os.listxattr(root):
            os.removexattr(root, name)
        clear_flags(root)
        empty(root)
        os.utime(root)


def clear_flags(root: str) -> None:
    """Take off what ``chattr`` sets: any user may mark a folder of its own, and nothing else takes the marks off."""
    fd = os.open(root, os.O_RDONLY | OPEN_SAFELY)
    try:
        fcntl.ioctl(fd, SET_FLAGS, bytes(8))
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
            raise  # a file system without flags has none to take off
    finally:
        os.close(fd)


def empty(root: str) -> None:
    """Remove everything under ``root``, whatever its permissions, without recursion."""
    folders = [root]
    while folders:
        folder = folders[-1]
        below = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    below.append(entry.path)
                else:
                    os.unlink(entry.path)
        if below:
            folders += below
            continue
        folders.pop()
        if folder != root:
            os.rmdir(folder)
