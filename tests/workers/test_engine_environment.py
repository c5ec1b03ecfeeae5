"""What processes of the engine get of the service's environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.home import ROOT, Home, environment_for
from devtools.ray_head import PORT_VARIABLES
from devtools.ray_head import environment as ray_environment
from devtools.services import embedded_servers
from tests.workers.secret_variables import OF_ENGINES, SERVICES, TOMORROWS, give_all
from workers.engine_environment import ENGINE, JOBS, PLAYERS, passed_on
from workers.ray_jobs import engine_command

PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.parametrize("names", [ENGINE, PLAYERS, JOBS], ids=["engine", "players", "jobs"])
def test_nothing_of_the_service_is_passed_on(names: tuple[str, ...]) -> None:
    environ = dict.fromkeys({*SERVICES, "PATH", "PALESTRA_HOME", "POSTGRES_PASSWORD_FILE", "path"}, "x")
    assert passed_on(names, environ) == {"PATH": "x", "PALESTRA_HOME": "x"}


def test_keys_reach_those_who_use_them_alone() -> None:
    environ = dict.fromkeys(OF_ENGINES, "x")
    assert passed_on(ENGINE, environ) == {}
    judge_and_sandboxes = {"PALESTRA_JUDGE_KEY", "PALESTRA_SANDBOX_URL", "PALESTRA_SANDBOX_TOKEN"}
    assert passed_on(PLAYERS, environ).keys() == judge_and_sandboxes
    assert passed_on(JOBS, environ).keys() == OF_ENGINES > judge_and_sandboxes


def test_what_computes_is_as_it_is_set() -> None:
    wanted = {
        "LC_ALL": "C.UTF-8", "TMPDIR": "/x", "PYTHONPATH": "/app", "PALESTRA_MODELS": "/m", "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "3", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    assert passed_on(ENGINE, wanted) == wanted


def test_a_job_becomes_the_engine_with_what_jobs_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    give_all(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    command = engine_command("job", "x").replace(" engine job x", f" timeit -n 1 -r 1 '{PRINT_ENVIRONMENT}'")
    environ = dict(os.environ)
    done = subprocess.run(["sh", "-c", command], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    got = json.loads(done.stdout.splitlines()[0])
    assert not SERVICES & got.keys()
    assert got.items() >= {name: environ[name] for name in (*OF_ENGINES, "RAY_ADDRESS", "PATH")}.items()


def test_rays_head_of_a_home_gets_what_jobs_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    give_all(monkeypatch)
    home = Home(tmp_path, tmp_path)
    home.ray_token_file.parent.mkdir()
    home.ray_token_file.write_text("x")
    ports = dict.fromkeys(("dashboard-port", *PORT_VARIABLES), 1)
    monkeypatch.setattr("devtools.ray_head.PORTS", ("dashboard-port",))
    command = embedded_servers(home, ports)[-1].command
    assert command[3:5] == ["ray.scripts.scripts", "start"]
    printing = [*command[:3], "timeit", "-n", "1", "-r", "1", PRINT_ENVIRONMENT]
    given = environment_for(home, port=1, ray_jobs_port=1) | ray_environment(ports)
    assert given[TOMORROWS]
    done = subprocess.run(printing, env=given, cwd=ROOT, capture_output=True, text=True, timeout=60)
    got = json.loads(done.stdout.splitlines()[0])
    assert not SERVICES & got.keys()
    assert got.items() >= ray_environment(ports).items()
    assert got["PATH"].startswith(str(Path(sys.executable).parent))
