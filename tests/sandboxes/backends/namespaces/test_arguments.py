import os
from dataclasses import replace

import pytest

from sandboxes.backends.namespaces.arguments import SYSTEM_FOLDERS, Descriptors, bwrap_arguments
from sandboxes.spec import SandboxSpec

FDS = Descriptors(agent=11, seccomp=12, info=13, passwd=14, group=15)


@pytest.fixture
def arguments() -> list[str]:
    return bwrap_arguments("/usr/bin/bwrap", SandboxSpec(disk_mib=3), FDS)


def values(arguments: list[str], flag: str, count: int) -> list[tuple[str, ...]]:
    return [tuple(arguments[at + 1 : at + 1 + count]) for at, word in enumerate(arguments) if word == flag]


@pytest.mark.parametrize(
    "flag",
    ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
     "--as-pid-1", "--new-session", "--die-with-parent", "--clearenv"],
)  # fmt: skip
def test_every_wall_is_asked_for_once(arguments, flag):
    assert arguments.count(flag) == 1


def test_no_capability_and_no_root_id(arguments):
    assert values(arguments, "--cap-drop", 1) == [("ALL",)]
    assert "--cap-add" not in arguments
    assert (values(arguments, "--uid", 1), values(arguments, "--gid", 1)) == ([("1000",)], [("1000",)])


def test_nothing_of_the_host_is_bound_writable(arguments):
    assert "--bind" not in arguments
    assert "--bind-try" not in arguments
    assert {source for source, _ in values(arguments, "--dev-bind", 2)} == {
        "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    }  # fmt: skip


def test_of_the_host_only_the_system_is_bound_at_all(arguments):
    bound = {source for flag in ("--ro-bind", "--ro-bind-try") for source, _ in values(arguments, flag, 2)}
    folders = {f"/{name}" for name in SYSTEM_FOLDERS}
    assert bound <= {"/usr", "/etc/ld.so.cache", "/etc/alternatives"} | folders


def test_every_writable_file_system_has_a_size_and_the_rest_is_made_read_only(arguments):
    sized = {arguments[at + 3] for at, word in enumerate(arguments) if word == "--size"}
    assert values(arguments, "--size", 1) == [(str(3 * 2**20),)] * 2
    read_only = {path for (path,) in values(arguments, "--remount-ro", 1)}
    unsized = {path for (path,) in values(arguments, "--tmpfs", 1)} - sized
    assert sized == {"/work", "/tmp"}
    assert unsized | {"/"} == read_only


def test_the_root_is_closed_after_everything_is_mounted(arguments):
    last_mount = max(
        at for at, word in enumerate(arguments) if word in ("--tmpfs", "--ro-bind", "--proc", "--dev-bind")
    )
    assert arguments.index("--remount-ro") > last_mount


def test_nothing_is_handed_over_but_the_named_descriptors(arguments):
    assert (values(arguments, "--seccomp", 1), values(arguments, "--info-fd", 1)) == ([("12",)], [("13",)])
    assert arguments[-1] == "11"


def test_the_environment_of_the_host_plays_no_part(arguments, monkeypatch):
    monkeypatch.setitem(os.environ, "SECRET", "x")
    assert bwrap_arguments("/usr/bin/bwrap", SandboxSpec(disk_mib=3), FDS) == arguments


def test_a_zygote_has_the_same_walls_but_for_what_its_children_make(arguments):
    """Three capabilities in the new user namespace, no filter of calls, and no writable file system of its own."""
    zygotes = bwrap_arguments("/usr/bin/bwrap", SandboxSpec(disk_mib=3), replace(FDS, seccomp=None), zygote=True)
    assert {name for (name,) in values(zygotes, "--cap-add", 1)} == {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"}
    assert zygotes.index("--cap-drop") < zygotes.index("--cap-add")
    assert "--seccomp" not in zygotes
    assert {("/work",), ("/tmp",)} <= set(values(zygotes, "--dir", 1))
    assert "--size" not in zygotes
    assert values(zygotes, "--remount-ro", 1) == values(arguments, "--remount-ro", 1)
    own = {"--cap-add", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"}
    assert set(zygotes) - set(arguments) == own
    assert set(arguments) - set(zygotes) == {"--seccomp", str(FDS.seccomp), "--size", str(3 * 2**20)}
