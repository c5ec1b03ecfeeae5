import socket
from pathlib import Path

import pytest

from devtools import ports
from devtools.errors import Unfit
from devtools.ports import choose_web_port, free_ports


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_free_ports_are_all_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    taken_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_PORT", str(taken_port))
    with pytest.raises(Unfit, match=f"port {taken_port} .* is taken"):
        choose_web_port(tmp_path / "port")


@pytest.mark.parametrize("asked", ["web", "80", "70000", "-1"])
def test_what_is_no_port_is_refused_with_the_range(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_PORT", asked)
    with pytest.raises(Unfit, match="from 1024 to 65535"):
        choose_web_port(tmp_path / "port")


def test_a_taken_default_port_gives_way_to_the_next_free_one(
    taken_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    monkeypatch.setattr(ports, "DEFAULT_PORT", taken_port)
    said: list[str] = []
    chosen = choose_web_port(tmp_path / "port", say=said.append)
    assert taken_port < chosen < taken_port + 200
    assert said == [f"port {taken_port} is taken; using {chosen}"]


def test_a_home_keeps_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    wanted = free_ports(1)[0]
    (tmp_path / "port").write_text(str(wanted))
    assert choose_web_port(tmp_path / "port") == wanted


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "palestra.example.org"])
def test_an_address_beyond_loopback_is_refused(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_HOST", host)
    with pytest.raises(Unfit, match="this machine only"):
        choose_web_port(tmp_path / "port")
