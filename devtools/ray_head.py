"""The Ray head: one node, loopback only, token of our own, as lean as Ray can be.

Its files live in the socket folder, because Ray's own socket paths are long.  They are worth
nothing after it has ended, so they are dropped before each start.
"""

import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

from devtools.ports import free_ports

OBJECT_STORE_BYTES = 150 * 2**20
PORTS = (
    "port", "dashboard-port", "ray-client-server-port", "node-manager-port", "object-manager-port",
    "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port", "metrics-export-port",
)  # fmt: skip
PORT_VARIABLES = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
"""Two ports that Ray takes from the environment only."""

ENVIRONMENT = {
    # The switch that makes Ray a single node on 127.0.0.1; without it Ray listens on every address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Idle workers that nobody asked for would cost 60 MiB each.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def choose_ports() -> dict[str, int]:
    names = (*PORTS, *PORT_VARIABLES)
    return dict(zip(names, free_ports(len(names)), strict=True))


def environment(ports: dict[str, int]) -> dict[str, str]:
    return ENVIRONMENT | {name: str(ports[name]) for name in PORT_VARIABLES}


def head_command(ports: dict[str, int], temporary: Path) -> list[str]:
    options = [f"--{name}={ports[name]}" for name in PORTS]
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", *options,
        "--min-worker-port=0", "--max-worker-port=0",
        f"--num-cpus={max(2, os.cpu_count() or 2)}", f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temporary}", "--no-monitor", "--include-log-monitor=false", "--disable-usage-stats",
        "--log-style=record", "--log-color=false",
    ]  # fmt: skip


def forget_dead_head(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)


def answers(jobs_url: str, token: str) -> bool:
    """Return whether the job server, the last part of the head to come up, takes requests."""
    request = urllib.request.Request(f"{jobs_url}/api/version", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
