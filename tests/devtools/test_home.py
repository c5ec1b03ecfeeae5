import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.errors import Unfit
from devtools.home import ROOT, Home, HomeLock, environment_for, make_private, socket_folder_of


def home_in(folder: Path) -> Home:
    return Home(folder, folder / "sockets")


def test_sockets_of_a_deep_home_fit_into_the_limit_of_unix_sockets() -> None:
    deep = Path("/").joinpath(*["a-rather-long-folder-name"] * 12)
    assert len(os.fsencode(socket_folder_of(deep) / ".s.PGSQL.5432.lock")) < 107


def test_two_homes_never_share_a_socket_folder() -> None:
    assert socket_folder_of(Path("/one")) != socket_folder_of(Path("/two"))


def test_a_home_is_closed_to_others(tmp_path: Path) -> None:
    home = home_in(tmp_path / "home")
    home.prepare()
    assert home.folder.stat().st_mode & 0o077 == 0
    assert home.sockets.stat().st_mode & 0o077 == 0


def test_a_symlink_in_place_of_the_socket_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sockets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unfit, match="belongs to somebody else"):
        make_private(tmp_path / "sockets")


def test_a_home_that_cannot_be_made_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unfit, match="set PALESTRA_HOME to a folder of yours"):
        home_in(tmp_path / "file" / "home").prepare()


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    first = home.secret("secret_key")
    assert home.secret("secret_key") == first
    assert len(first) >= 50
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", ["", '{"pid": 1'])
def test_what_a_power_cut_left_half_written_is_made_anew(tmp_path: Path, left: str) -> None:
    home = home_in(tmp_path)
    home.state_file.write_text(left)
    (tmp_path / "secret_key").write_text("")
    assert home.state() == {}
    secret = home.secret("secret_key")
    assert len(secret) >= 50
    assert home.secret("secret_key") == secret
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret_key", "supervisor.json"]


def test_the_lock_admits_one_and_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert HomeLock(home).is_held_by_somebody()
    assert not HomeLock(home).acquire()
    holder.kill()
    holder.wait()
    assert not HomeLock(home).is_held_by_somebody()
    assert HomeLock(home).acquire()


_HOLDER = """
import sys, time
from pathlib import Path
from devtools.home import Home, HomeLock
lock = HomeLock(Home(Path(sys.argv[1]), Path(sys.argv[1])))
print(lock.acquire(), flush=True)
time.sleep(600)
"""


def test_servers_that_the_caller_names_win_over_the_embedded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me@db.example/palestra")
    monkeypatch.setenv("REDIS_URL", "redis://cache.example:6379/0")
    reported = environment_for(home_in(tmp_path), port=8700, ray_jobs_port=8265)
    assert reported["DATABASE_URL"] == "postgres://me@db.example/palestra"
    assert reported["REDIS_URL"] == "redis://cache.example:6379/0"


def test_the_embedded_servers_are_reached_through_sockets_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("REDIS_URL")
    home = home_in(tmp_path)
    reported = environment_for(home, port=8700, ray_jobs_port=8265)
    assert reported["REDIS_URL"] == f"unix://{home.sockets}/valkey.sock"
    assert reported["DATABASE_URL"].startswith("postgres://palestra@/palestra?host=")
    assert reported["RAY_AUTH_TOKEN_PATH"].startswith(str(home.folder))
