"""How a server is started, and that it ends with whoever started it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from engine.inference.sglang.broadcast import address_towards
from engine.inference.sglang.client import ServerGone, SglangClient
from engine.inference.sglang.process import (
    CPU_SERVER,
    ServedAdapter,
    ServerFailed,
    ServerProcess,
    devices_of,
    judge_command,
    launch_command,
    launch_environment,
    new_key,
)
from engine.spec.sglang import JudgeServers, Sglang

SERVER = "import subprocess, sys, time; subprocess.Popen(['sleep', '300']); print('up', flush=True); time.sleep(300)"
"""It has a child, as SGLang's servers have several."""
KEY_FILE = Path("/scratch/server-0.yaml")


def test_a_key_is_no_option_of_a_command_line() -> None:
    """Among random bytes in base64, each 64th begins with a dash."""
    keys = {new_key() for _ in range(2000)}
    assert len(keys) == 2000
    assert all(key.isalnum() and len(key) >= 32 for key in keys)


def test_a_key_stands_in_a_file_of_its_owners_and_on_no_command_line(tmp_path: Path) -> None:
    """The engine's own command, of which an interpreter that sleeps is the program."""

    def command(port: int, key_file: Path) -> list[str]:
        words = launch_command(
            sys.executable, Path("/m"), Sglang(), device="cpu", dtype="float32", port=port, key_file=key_file
        )
        return [sys.executable, "-c", SERVER, *words]

    started = ServerProcess(command, os.environ, tmp_path / "server-0.log")
    started.start()
    try:
        keeper, server, _child = family(started)
        words = [*keeper.cmdline(), *server.cmdline()]
        assert not any(started.api_key in word for word in words)
        key_file = Path(words[words.index("--config") + 1])
        assert json.loads(key_file.read_text()) == {"api-key": started.api_key}
        assert key_file.stat().st_mode & 0o777 == 0o600
        assert key_file.suffix == ".yaml", "SGLang reads no other"
    finally:
        started.stop()


def process(tmp_path: Path, code: str = SERVER) -> ServerProcess:
    return ServerProcess(lambda port, key_file: [sys.executable, "-c", code], os.environ, tmp_path / "log")


def family(started: ServerProcess) -> list[psutil.Process]:
    """The keeper, the server and the server's child, once all of them are there."""
    assert started.pid is not None
    keeper = psutil.Process(started.pid)
    return [keeper, *until(lambda: found if len(found := keeper.children(recursive=True)) == 2 else [])]


def until(condition, timeout_s: float = 20.0):
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_a_server_is_stopped_with_its_children(tmp_path: Path) -> None:
    started = process(tmp_path)
    started.start()
    family_of_it = family(started)
    started.check()
    started.stop()
    until(lambda: all_gone(family_of_it))
    assert started.has_ended()
    started.stop()


def test_a_server_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from engine.inference.sglang.process import ServerProcess;"
        f"log = Path({str(tmp_path / 'log')!r}); server = [sys.executable, '-c', {SERVER!r}];"
        "p = ServerProcess(lambda *_: server, os.environ, log);"
        "p.start(); print(p.pid, flush=True); time.sleep(300)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    keeper = psutil.Process(int(starter.stdout.readline()))
    processes = [keeper, *until(lambda: found if len(found := keeper.children(recursive=True)) == 2 else [])]
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    until(lambda: all_gone(processes))


def test_a_server_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    started = process(tmp_path)
    started.start()
    keeper, server, _child = family(started)
    keeper.kill()
    until(lambda: all_gone([server]))
    _child.kill()  # SGLang's own children ask the kernel to end with it; this one did not
    started.stop()


def test_a_server_that_ends_says_with_what_its_log_ended(tmp_path: Path) -> None:
    started = process(tmp_path, "raise SystemExit('no such model')")
    started.start()
    until(started.has_ended)
    with pytest.raises(ServerFailed, match="code 1.*no such model".replace(".*", r"[\s\S]*")):
        started.check()


def test_flags_of_the_spec_come_last_and_a_cpu_gets_what_it_needs() -> None:
    settings = Sglang(tensor_parallel=2, flags=["attention-backend=triton", "disable-radix-cache"])
    command = launch_command("py", Path("/m"), settings, device="cpu", dtype="float32", port=7, key_file=KEY_FILE)
    assert command[:2] == ["py", str(CPU_SERVER)]
    assert command[command.index("--attention-backend") + 1] == "triton"
    assert "--disable-cuda-graph" in command
    assert command[command.index("--tp-size") + 1] == "2"
    assert command[-1] == "--disable-radix-cache"
    on_gpu = launch_command("py", Path("/m"), Sglang(), device="cuda", dtype="bfloat16", port=7, key_file=KEY_FILE)
    assert on_gpu[:3] == ["py", "-m", "sglang.launch_server"]
    assert "--attention-backend" not in on_gpu


def test_a_server_of_adapters_is_told_their_rank_and_modules_and_torch_computes_them_on_a_cpu() -> None:
    adapter = ServedAdapter(8, ("k_proj", "q_proj"))
    started = {
        device: launch_command(
            "py", Path("/m m"), Sglang(), device=device, dtype="float32", port=7, key_file=KEY_FILE, adapter=adapter
        )
        for device in ("cpu", "cuda")
    }
    assert started["cpu"][1] == str(CPU_SERVER)
    assert started["cuda"][1:3] == ["-m", "sglang.launch_server"]
    for command in started.values():
        modules = command.index("--lora-target-modules")
        assert command[modules + 1 : modules + 3] == ["k_proj", "q_proj"]
        assert command[command.index("--max-lora-rank") + 1] == "8"
        assert "/m m" in command
    assert started["cpu"][started["cpu"].index("--lora-backend") + 1] == "torch_native"
    assert "--lora-backend" not in started["cuda"]


@pytest.mark.backends
@pytest.mark.sglang
async def test_the_processes_of_a_server_on_a_cpu_are_forked_from_one_that_has_imported_it(
    folder: Path, server_python: str, tmp_path: Path
) -> None:
    """Python writes each module that it imports into the server's log.  There are two threads, because a process that
    was forked behind the first pass of such would wait for the other thread for good."""
    settings = Sglang(flags=["max-total-tokens=2048"])
    environment = launch_environment(settings, 0, threads=2, device="cpu") | {"PYTHONPROFILEIMPORTTIME": "1"}
    started = ServerProcess(
        lambda port, key_file: launch_command(
            server_python, folder, settings, device="cpu", dtype="float32", port=port, key_file=key_file
        ),
        environment,
        tmp_path / "log",
    )
    started.start()
    client = SglangClient(started.url, api_key=started.api_key)
    try:
        async with asyncio.timeout(240):
            while not await answers(client):
                started.check()
                await asyncio.sleep(0.2)
            sampled = await client.generate("a", (5, 6, 7), {"max_new_tokens": 2}, behaviour_logprobs=False)
        assert len(sampled.token_ids) == 2
        imported = Counter(line.rpartition("|")[2].strip() for line in started.log.read_text().splitlines())
        assert imported["sglang.srt.managers.scheduler"] == imported["torch"] == 1
        keeper = psutil.Process(started.pid)
        processes = [keeper, *keeper.children(recursive=True)]
        assert len(processes) == 4
        keeper.kill()
        until(lambda: all_gone(processes))
    finally:
        await client.close()
        started.stop()


async def answers(client: SglangClient) -> bool:
    try:
        return bool(await client.server_info())
    except ServerGone:
        return False


def test_a_judge_is_started_with_its_tokenizer() -> None:
    judge = JudgeServers(path="j", dtype="float32", context_tokens=512, flags=["page-size=16"])
    command = judge_command("py", Path("/j"), judge, device="cpu", port=7, key_file=KEY_FILE)
    assert "--skip-tokenizer-init" not in command
    assert "--enable-cache-report" in command
    assert command[:2] == ["py", str(CPU_SERVER)]
    assert command[command.index("--context-length") + 1] == "512"
    assert command[-2:] == ["--page-size", "16"]


def test_servers_share_no_gpu_and_get_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Sglang(servers=2, tensor_parallel=2)
    assert [devices_of(number, settings, "4,5,6,7") for number in (0, 1)] == ["4,5", "6,7"]
    assert devices_of(1, settings, None) == "2,3"
    with pytest.raises(ServerFailed, match=r"resources\.sglang\.servers = 2.*sees 3"):
        devices_of(0, settings, "0,1,2")
    judge = JudgeServers(path="j", servers=2, tensor_parallel=2)
    assert devices_of(1, judge, "4,5,6,7,8", first_gpu=1) == "7,8"
    with pytest.raises(ServerFailed, match=r"resources\.judge\.servers = 2.*behind 1 of others.*sees 4"):
        devices_of(0, judge, "0,1,2,3", first_gpu=1)
    monkeypatch.setenv("PALESTRA_JUDGE_KEY", "secret")
    environment = launch_environment(settings, 0, threads=3, device="cpu")
    assert "PALESTRA_JUDGE_KEY" not in environment
    assert (environment["OMP_NUM_THREADS"], environment["SGLANG_RETURN_ORIGINAL_LOGPROB"]) == ("3", "1")


def test_ranks_of_a_group_meet_on_loopback_and_only_where_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    environments = [
        launch_environment(Sglang.model_validate({"weights": way}), 0, threads=1, device="cpu")
        for way in ("disk", "broadcast")
    ]
    assert [environment.get("GLOO_SOCKET_IFNAME") for environment in environments] == [None, "lo"]
    assert address_towards("http://127.0.0.1:30000") == "127.0.0.1"
    with pytest.raises(ServerGone, match="cannot be reached"):
        address_towards("http://name.invalid:30000")
