"""The seccomp profile of a container: system calls that are known and not refused, and nothing else.

The daemon's own profile cannot be asked for and added to, and older ones allow VSOCK and io_uring.  So
this is an allow list of our own: what Linux 6.7 has (``KNOWN``), less what ``namespaces.seccomp`` refuses, with the
same errors.  An allow list, unlike there, because libseccomp drops a rule for a name that it does not know: of a
deny list the newest calls would be missing.  A call that is in no list fails with EPERM, or ENOSYS where it is
newer than all of them.

Docker takes no listener, and what is refused here is refused before the agent's own filter may ask.  So
sockets that no gateway could see are refused without a record:
every family but unix, IPv4 and IPv6, and of these everything but TCP, UDP, MPTCP and ping.
"""

import errno
import json
from collections.abc import Iterable, Iterator
from functools import cache

from sandboxes.backends.namespaces.seccomp import (
    FLOW_LABELS,
    IPPROTO_IPV6,
    NAMESPACE_FLAGS,
    NOT_IMPLEMENTED,
    NOT_PERMITTED,
    PERSONALITIES,
    SELF_ONLY,
    SIGNAL_CHOICE,
    SOCKET_FAMILIES,
    TERMINAL_INJECTION,
)
from sandboxes.observation.filter import DATAGRAM, ICMP, ICMPV6, INET, INET6, MPTCP, STREAM, TCP, UDP, UNIX

KNOWN = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr
fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_setup io_submit ioprio_get kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat
madvise map_shadow_stack membarrier mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mremap
msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2
pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read
readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_yield seccomp select sendfile sendmmsg sendmsg sendto
set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setregid setresgid setresuid
setreuid setrlimit setsid setsockopt setuid setxattr shutdown sigaltstack signalfd signalfd4 splice stat statfs statx
symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink
unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
"""
"""The calls of both architectures; a name that one of them lacks is passed over there."""

Rule = dict[str, object]
WORD = 0xFFFFFFFF
"""Arguments are compared as 64 bits, of which the kernel reads only the low half of an ``int``."""


@cache
def profile() -> str:
    """Return what goes into ``security_opt`` after ``seccomp=``."""
    elsewhere = {
        *NOT_PERMITTED,
        *NOT_IMPLEMENTED,
        *SELF_ONLY,
        "personality",
        "clone",
        "ioctl",
        "fcntl",
        "socket",
        "setsockopt",
    }
    rules = [
        _allowed(name for name in KNOWN.split() if name not in elsewhere),
        _refused(NOT_PERMITTED, errno.EPERM),
        _refused(NOT_IMPLEMENTED, errno.ENOSYS),
        *(
            _allowed([name], *(_equal(index, value) for index, value in wanted.items()))
            for name, wanted in SELF_ONLY.items()
        ),
        *(_allowed(["personality"], _equal(0, value)) for value in PERSONALITIES),
        _allowed(["clone"], _masked(0, NAMESPACE_FLAGS, 0)),
        *(_allowed(["ioctl"], _masked(1, mask, value)) for mask, value in all_words_but(TERMINAL_INJECTION)),
        *(_allowed(["fcntl"], _masked(1, mask, value)) for mask, value in all_words_but(SIGNAL_CHOICE)),
        *_sockets(),
        *(_allowed(["setsockopt"], _masked(1, mask, value)) for mask, value in all_words_but((IPPROTO_IPV6,))),
        *(
            _allowed(["setsockopt"], _equal(1, IPPROTO_IPV6), _masked(2, mask, value))
            for mask, value in all_words_but((FLOW_LABELS,))
        ),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": rules})


def _sockets() -> Iterator[Rule]:
    for name in ("socket", "socketpair"):
        yield _allowed([name], _equal(0, UNIX))
        # Two comparisons of one argument cannot stand in one rule.
        for family in set(range(max(SOCKET_FAMILIES))) - set(SOCKET_FAMILIES):
            yield _refused([name], errno.EAFNOSUPPORT, _equal(0, family))
        yield _refused([name], errno.EAFNOSUPPORT, _condition(0, "SCMP_CMP_GT", max(SOCKET_FAMILIES)))
    for family in (INET, INET6):
        for kind, protocols in ((STREAM, (0, TCP, MPTCP)), (DATAGRAM, (0, UDP, ICMP, ICMPV6))):
            for protocol in protocols:
                # Above the type are SOCK_NONBLOCK and SOCK_CLOEXEC.
                yield _allowed(["socket"], _equal(0, family), _masked(1, 0xF, kind), _equal(2, protocol))


def all_words_but(refused: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Masks and values which together match every 32-bit word except ``refused``.

    A tree of prefixes: each branch off the paths to the refused words is one comparison.
    """
    prefixes = [0]
    for bit in reversed(range(32)):
        mask = WORD & -1 << bit
        wanted = {word & mask for word in refused}
        for branch in (child for prefix in prefixes for child in (prefix, prefix | 1 << bit)):
            if branch not in wanted:
                yield mask, branch
        prefixes = sorted(wanted)


def _allowed(names: Iterable[str], *conditions: Rule) -> Rule:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": list(conditions)}


def _refused(names: Iterable[str], code: int, *conditions: Rule) -> Rule:
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": code, "args": list(conditions)}


def _condition(index: int, operator: str, value: int, value_two: int = 0) -> Rule:
    return {"index": index, "value": value, "valueTwo": value_two, "op": operator}


def _equal(index: int, value: int) -> Rule:
    return _condition(index, "SCMP_CMP_EQ", value)


def _masked(index: int, mask: int, value: int) -> Rule:
    return _condition(index, "SCMP_CMP_MASKED_EQ", mask, value)
