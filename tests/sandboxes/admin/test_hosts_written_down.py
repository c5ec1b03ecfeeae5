"""What an operator may write down as a host of sandboxes, and what the command says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.admin.hosts_file import HostEntry, HostFault, HostsFile
from sandboxes.backends.remote.host_address import canonical
from sandboxes.service.refusals import Refusal

ROOT = Path(__file__).parents[3]


def hosts(home: Path, *arguments: str, token: str = "a-token") -> subprocess.CompletedProcess[str]:  # noqa: S107
    return subprocess.run(
        [sys.executable, "-m", "sandboxes", "hosts", *arguments],
        input=token,
        env=os.environ | {"PALESTRA_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "url", "field"),
    [
        ("", "http://10.0.0.7:8750", "name"),
        ("a/b", "http://10.0.0.7:8750", "name"),
        ("one", "10.0.0.7:8750", "url"),
        ("one", "http://me:geheim@10.0.0.7:8750", "url"),
        ("one", "http://10.0.0.7:99999", "url"),
        ("one", "http://:8750", "url"),
        ("one", "http://[fd00::7:8750", "url"),
        ("one", "http://[fd00::zz]:8750", "url"),
        ("one", "http://[::1]8750", "url"),
        ("one", "http://10.0.0.7:0", "url"),
        ("one", "http://10.0.0.7:", "url"),
        ("one", "http://10.0.0.777:8750", "url"),
        ("one", "http://-:8750", "url"),
        ("one", "http://a..b:8750", "url"),
        ("one", "ftp://10.0.0.7:8750", "url"),
        ("one", "http://10.0.0.7:8750/", "url"),
        ("one", "http://10.0.0.7:8750?a=b", "url"),
    ],
)
def test_what_is_no_host_is_refused_by_its_field(tmp_path: Path, name: str, url: str, field: str) -> None:
    refused = hosts(tmp_path, "add", name, url)
    assert refused.returncode != 0, refused.stdout
    assert f"{field} = " in refused.stderr
    assert "; give " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "geheim" not in refused.stderr


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://10.0.0.7", "http://10.0.0.7:80"),
        ("HTTPS://Host-1.Example", "https://host-1.example:443"),
        ("http://[FD00:0:0::7]:8750", "http://[fd00::7]:8750"),
        ("http://sandboxes_1:65535", "http://sandboxes_1:65535"),
        ("http://h.:80", "http://h:80"),
    ],
)
def test_every_way_to_write_an_address_is_one_text(tmp_path: Path, url: str, text: str) -> None:
    file = HostsFile(tmp_path / "hosts.json")
    file.add(HostEntry(name="one", url=url, token="t"))
    assert file.entries()["one"].url == url
    assert canonical(url) == canonical(text) == text
    with pytest.raises(HostFault, match=r"url = .*host 'one' has this address.*remove 'one' first"):
        file.add(HostEntry(name="two", url=text, token="t"))


def test_a_host_that_registers_itself_gets_no_address_of_another_but_that_of_its_dead_neighbour(
    tmp_path: Path,
) -> None:
    file = HostsFile(tmp_path / "hosts.json")
    old, new = (HostEntry(name=name, url="http://h:80", token=name, registered_by="j") for name in ("old", "new"))
    file.register(old)
    same = new.model_copy(update={"url": "http://H"})
    for down, entry in ((), same), (("old",), same.model_copy(update={"registered_by": "another"})):
        with pytest.raises(Refusal) as refused:
            file.register(entry, down)
        [problem] = refused.value.problems
        assert (problem.field, "'old'" in problem.remedy) == ("url", True)
    assert [*file.entries()] == ["old"]
    file.register(new, down=["old"])
    assert [*file.entries()] == ["new"]


def test_one_host_under_two_names_is_refused_since_its_room_would_count_twice(tmp_path: Path) -> None:
    assert hosts(tmp_path, "add", "one", "http://10.0.0.7:8750").returncode == 0
    again = hosts(tmp_path, "add", "one", "http://10.0.0.8:8750")
    assert again.returncode != 0
    assert "remove it first" in again.stderr
    twice = hosts(tmp_path, "add", "two", "http://10.0.0.7:8750")
    assert twice.returncode != 0, "the same address under another name"
    assert "one" in twice.stderr


def test_a_host_without_a_token_and_a_name_that_nobody_has_are_met_with_the_remedy(tmp_path: Path) -> None:
    assert "token create" in hosts(tmp_path, "add", "one", "http://10.0.0.7:8750", token="").stderr
    assert hosts(tmp_path, "add", "one", "http://10.0.0.7:8750").returncode == 0
    assert "there are: one" in hosts(tmp_path, "drain", "two").stderr
