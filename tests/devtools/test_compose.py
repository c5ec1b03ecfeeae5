"""docker-compose.yml is the production shape."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.home import ROOT
from devtools.web import configuration
from tests.workers.secret_variables import variables_in

DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
OURS = ("web", "migrate", "worker", "beat", "chats", "serving", "ray-head", "sandboxes", "megatron")
GPU = ("megatron",)


def test_every_process_of_the_architecture_is_there() -> None:
    always = {"web", "migrate", "worker", "beat", "chats", "serving", "ray-head", "postgres", "valkey"}
    assert set(SERVICES) == always | {"sandboxes", *GPU}
    assert SERVICES["sandboxes"]["profiles"] == ["sandboxes"]
    assert {name for name, one in SERVICES.items() if one.get("profiles") == ["gpu"]} == set(GPU)


def test_only_what_answers_people_and_programs_is_published_and_only_on_loopback() -> None:
    published = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    assert published == {"web": ["127.0.0.1:8700:8700"], "serving": ["127.0.0.1:8780:8780"]}
    assert all(one["networks"] == ["back"] for name, one in SERVICES.items() if name not in published)
    assert DOCUMENT["networks"]["back"]["internal"] is True


@pytest.mark.parametrize("name", OURS)
def test_our_processes_run_without_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_what_keeps_running_is_watched_and_restarted(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_stands_in_the_file(name: str) -> None:
    assert SERVICES[name]["env_file"] or name == "sandboxes"
    assert "environment" not in SERVICES[name]


def test_the_sandbox_service_gets_no_secret_at_all() -> None:
    assert SERVICES["sandboxes"]["env_file"] == []


def test_what_makes_sandboxes_knows_no_secret_of_the_service() -> None:
    """Only these run without Docker's profiles: a sandbox that breaks finds no address of the database."""
    unconfined = {name for name, one in SERVICES.items() if "seccomp:unconfined" in one.get("security_opt", [])}
    assert unconfined == {"ray-head", "sandboxes"}
    assert not any(".env.production" in SERVICES[name]["env_file"] for name in unconfined)


def test_the_host_of_conversations_reads_what_it_loads_and_changes_none_of_it() -> None:
    chats, worker = SERVICES["chats"], SERVICES["worker"]
    read = {volume.removesuffix(":ro") for volume in chats["volumes"] if volume.endswith(":ro")}
    assert len(read) == len(chats["volumes"])
    assert read < {volume.removesuffix(":ro") for volume in worker["volumes"]}
    assert {volume.partition(":")[0] for volume in read} == {"runs", "model-folders", "datasets"}
    assert chats["read_only"] is True
    assert chats["command"][-2:] == ["--alive", "/tmp/chats-alive"]
    assert "-name chats-alive " in chats["healthcheck"]["test"][-1]


def test_the_host_of_served_models_changes_nothing_but_its_own_records() -> None:
    serving, worker = SERVICES["serving"], SERVICES["worker"]
    changed = {volume for volume in serving["volumes"] if not volume.endswith(":ro")}
    assert changed == {"serving:/var/lib/palestra/serving"}
    read = {volume.removesuffix(":ro") for volume in serving["volumes"]} - changed
    assert read < {volume.removesuffix(":ro") for volume in worker["volumes"]}
    assert serving["command"][-2:] == ["--alive", "/tmp/serving-alive"]
    assert "-name serving-alive " in serving["healthcheck"]["test"][-1]


FILES_OF = {
    **dict.fromkeys(("web", "migrate", "beat", "serving"), [".env.production"]),
    **dict.fromkeys(("worker", "chats"), [".env.production", ".env.engine"]),
    **dict.fromkeys(("ray-head", "megatron"), [".env.engine"]),
    "sandboxes": [], "postgres": [".env.postgres"], "valkey": [".env.valkey"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_gets_the_files_that_it_reads(name: str) -> None:
    assert SERVICES[name]["env_file"] == FILES_OF[name]


def test_passwords_of_the_servers_are_theirs_alone() -> None:
    """Others have addresses; a file has what all who get it use."""
    assert variables_in(".env.postgres.example") == {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}
    assert variables_in(".env.valkey.example") == {"VALKEY_PASSWORD"}
    of_service = variables_in(".env.example")
    assert {"DATABASE_URL", "REDIS_URL"} < of_service
    assert not any(name.startswith(("POSTGRES_", "VALKEY_")) for name in of_service)
    assert not of_service & variables_in(".env.engine.example")


def test_no_file_with_secrets_is_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {file for files in FILES_OF.values() for file in files} <= set(ignored)


@pytest.mark.parametrize("name", ["ray-head", "megatron"])
def test_engines_get_no_secret_of_the_service(name: str) -> None:
    assert SERVICES[name]["env_file"] == [".env.engine"]
    reported = (ROOT / ".env.engine.example").read_text()
    assert not any(secret in reported for secret in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "PASSWORD"))


def test_every_dependency_and_volume_exists() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(DOCUMENT["volumes"])


def test_what_is_copied_into_the_image_exists_and_is_not_ignored() -> None:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    wanted = {word for line in lines for word in line.split()[1:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == allowed
    assert all((ROOT / name).exists() for name in wanted)


def test_the_image_has_every_package_that_sandboxes_complain_of_without() -> None:
    (line,) = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "apt-get install" in line]
    installed = set(line.partition("--no-install-recommends")[2].strip(" \\").split())
    sources = (ROOT / "sandboxes" / "backends" / "namespaces").glob("*.py")
    wanted = {name for path in sources for name in re.findall(r"apt-get install ([a-z0-9-]+)", path.read_text())}
    assert {"bubblewrap", "python3"} < wanted
    assert wanted - installed == {"coreutils"}, "which no Debian is without"


@pytest.mark.parametrize(
    "profiles", [[], ["--profile", "gpu"], ["--profile", "sandboxes"]], ids=["plain", "gpu", "sandboxes"]
)
def test_compose_itself_accepts_the_file(profiles: list[str], tmp_path: Path) -> None:
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    shutil.copy(ROOT / ".env.example", tmp_path / ".env.production")
    for name in (".env.engine", ".env.postgres", ".env.valkey"):
        shutil.copy(ROOT / f"{name}.example", tmp_path / name)
    text = (ROOT / "docker-compose.yml").read_text()
    if _has_plugin():
        compose = ["docker", "compose"]
    elif shutil.which("docker-compose"):
        compose = ["docker-compose"]
        text = text.replace("name: palestra\n", "", 1)  # version 1 knows everything in the file but this
    else:
        pytest.skip("needs docker compose, or Debian's package docker-compose")
    (tmp_path / "docker-compose.yml").write_text(text)
    done = subprocess.run([*compose, *profiles, "config", "--quiet"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _has_plugin() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


def test_live_frames_are_not_compressed_per_viewer() -> None:
    assert configuration().ws_per_message_deflate is False
    command = SERVICES["web"]["command"]
    assert command[command.index("--ws-per-message-deflate") + 1] == "false"
    assert '"--ws-per-message-deflate", "false"' in (ROOT / "Dockerfile").read_text()
