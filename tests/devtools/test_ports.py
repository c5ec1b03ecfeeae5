import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from devtools import ports
from devtools.errors import Unfit
from devtools.ports import free_ports, hold_web_port


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
        hold_web_port(tmp_path / "port")


@pytest.mark.parametrize("asked", ["web", "80", "70000", "-1"])
def test_what_is_no_port_is_refused_with_the_range(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_PORT", asked)
    with pytest.raises(Unfit, match="from 1024 to 65535"):
        hold_web_port(tmp_path / "port")


def test_a_taken_default_port_gives_way_to_the_next_free_one(
    taken_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    monkeypatch.setattr(ports, "DEFAULT_PORT", taken_port)
    shown: list[str] = []
    with hold_web_port(tmp_path / "port", show=shown.append) as held:
        chosen = held.getsockname()[1]
    assert taken_port < chosen < taken_port + 200
    assert shown == [f"port {taken_port} is taken; using {chosen}"]


def test_a_home_keeps_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    wanted = free_ports(1)[0]
    (tmp_path / "port").write_text(str(wanted))
    with hold_web_port(tmp_path / "port") as held:
        assert held.getsockname()[1] == wanted


def test_a_port_file_that_a_power_cut_left_empty_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    (tmp_path / "port").write_text("")
    with hold_web_port(tmp_path / "port", show=lambda _: None) as held:
        assert (tmp_path / "port").read_text() == str(held.getsockname()[1])


def test_two_homes_that_start_in_the_same_moment_get_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    with ThreadPoolExecutor(16) as starters, ExitStack() as holding:
        held = list(starters.map(lambda number: hold_web_port(tmp_path / str(number), show=lambda _: None), range(16)))
        ports_taken = [holding.enter_context(item).getsockname()[1] for item in held]
    assert len(set(ports_taken)) == 16


def test_a_request_that_comes_while_the_web_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_PORT", raising=False)
    with hold_web_port(tmp_path / "port", show=lambda _: None) as held, socket.create_connection(held.getsockname()):
        accepted, _ = held.accept()
        accepted.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "palestra.example.org"])
def test_an_address_beyond_loopback_is_refused(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_HOST", host)
    with pytest.raises(Unfit, match="this machine only"):
        hold_web_port(tmp_path / "port")
