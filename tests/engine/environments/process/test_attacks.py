"""What a hostile package tries: to reach what is the engine's, to take more than its share, and to lie."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.environments.contract import EnvironmentProcessLost
from engine.environments.imported import UnusableEnvironment
from engine.environments.process.answers import MisfitAnswer
from engine.environments.process.connection import LOG_BYTES, RaisedInProcess
from engine.environments.process.environment import ProcessEnvironment
from engine.spec.message import AssistantMessage
from sandboxes.cgroups.hierarchies import found

Make = Callable[..., ProcessEnvironment]
EVALUATES = """
async def act(play, text):
    names = dict(globals(), play=play)
    try:
        exec("async def tried():\\n" + "\\n".join("    " + line for line in text.splitlines()), names)
        result = await names["tried"]()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return Observation(messages=(Message("user", str(result)[:5000]),))
"""
WIRE = "line = int(sys.argv[1])"


async def tried(environment: ProcessEnvironment, code: str) -> str:
    async with environment.session(environment.tasks("train")[0], None) as session:  # type: ignore[arg-type]
        return (await session.act(AssistantMessage(code))).messages[0].content


@pytest.fixture
def hostile(environment_of: Make) -> ProcessEnvironment:
    return environment_of(EVALUATES, process={"call_timeout_s": 20, "memory_mib": 256, "disk_mib": 4, "processes": 32})


async def test_no_variable_of_the_engine_is_there(environment_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_JUDGE_KEY", "top secret")
    environment = environment_of(EVALUATES)
    reading = "[open(f'/proc/{pid}/environ').read() for pid in os.listdir('/proc') if pid.isdigit()]"
    seen = await tried(environment, f"return {reading} + [dict(os.environ)]")
    assert "PATH" in seen
    assert "secret" not in seen
    assert "PALESTRA" not in seen


@pytest.mark.parametrize(
    "path", ["/root", "/home", "/work/main", "/etc/shadow", "/etc/hostname", "/var", "/run", "/sys", "/mnt/0"]
)
async def test_files_of_the_machine_are_not_there(hostile: ProcessEnvironment, path: str) -> None:
    assert await tried(hostile, f"return os.path.exists({path!r})") == "False"


async def test_the_engines_own_files_and_processes_are_not_there(hostile: ProcessEnvironment, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    assert await tried(hostile, f"return os.path.exists({str(tmp_path / 'secret')!r})") == "False"
    assert await tried(hostile, "return [p for p in os.listdir('/proc') if p.isdigit()]") == "['1']"
    assert await tried(hostile, "return sorted(os.listdir('/environment'))") == "['src', 'venv']"


async def test_it_is_nobody_without_capabilities(hostile: ProcessEnvironment) -> None:
    status = await tried(hostile, "return open('/proc/self/status').read()")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert "Uid:\t1000\t1000" in status


async def test_its_own_package_cannot_be_changed_for_a_later_run(hostile: ProcessEnvironment) -> None:
    for path in (
        "/environment/src/acting.py",
        "/environment/new",
        "/environment-facade/palestra_env/serving.py",
        "/new",
    ):
        seen = await tried(hostile, f"open({path!r}, 'a').write('x')")
        assert "Read-only file system" in seen or "Permission denied" in seen, path
        assert (await tried(hostile, f"os.chmod({path!r}, 0o777)")).startswith(("OSError", "Perm", "FileNotFound"))


async def test_no_network_and_no_socket_of_the_machine_is_reached(hostile: ProcessEnvironment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0palestra-test-{os.getpid()}")
        abstract.listen()
        port = server.getsockname()[1]
        assert "refused" in await tried(hostile, f"socket.create_connection(('127.0.0.1', {port}), 2)")
        assert "refused" in await tried(
            hostile, f"socket.socket(socket.AF_UNIX).connect('\\0palestra-test-{os.getpid()}')"
        )
        assert "unreachable" in await tried(hostile, "socket.create_connection(('192.0.2.1', 80), 2)")
        assert "gaierror" in await tried(hostile, "socket.create_connection(('example.org', 80), 2)")


@pytest.mark.parametrize(
    "call",
    [
        "ctypes.CDLL(None).unshare(0x10000000)",
        "ctypes.CDLL(None).ptrace(16, 1, 0, 0)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    ],
)
async def test_calls_that_sandboxes_do_not_have_it_has_not(hostile: ProcessEnvironment, call: str) -> None:
    seen = await tried(hostile, f"return {call}")
    assert seen == "-1" or "OSError" in seen


async def test_a_memory_bomb_is_an_error_of_its_own_episode(hostile: ProcessEnvironment) -> None:
    assert "MemoryError" in await tried(hostile, "kept = bytearray(10**9)")
    assert await tried(hostile, "return 'alive'") == "alive"


async def test_a_fork_bomb_ends_at_the_limit_and_leaves_nothing(hostile: ProcessEnvironment) -> None:
    bomb = """
made = 0
try:
    while made < 10000:
        if os.fork() == 0: time.sleep(1000)
        made += 1
except OSError as error:
    return made, error.errno
"""
    made, code = eval(await tried(hostile, bomb))
    assert made < 32
    assert code == 11
    assert await tried(hostile, "return 'alive'") == "alive"


async def test_what_it_started_ends_with_it(hostile: ProcessEnvironment) -> None:
    if not found().hierarchies:
        pytest.skip("without cgroups nobody lists them")
    await tried(hostile, "subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    members = hostile._kept._running[0].members()  # type: ignore[index]
    assert len(members) >= 3
    with pytest.raises(EnvironmentProcessLost):
        await tried(hostile, "os._exit(0)")
    await tried(hostile, "return 1")  # the next one is started when nothing is left of the former
    assert not any(Path(f"/proc/{pid}").exists() for pid in members)


async def test_its_disk_is_bounded(hostile: ProcessEnvironment) -> None:
    for folder in ("/work", "/tmp"):
        seen = await tried(hostile, f"for i in range(9): open('{folder}/%d' % i, 'wb').write(bytes(2**20))")
        assert "No space left" in seen


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (r"b'nonsense\n'", "no line of JSON"),
        (r"b'\xff\xfe\n'", "no line of JSON"),
        (r"b'[' * 100000 + b'\n'", "no line of JSON"),
        (r"b'[]\n'", "answers no question"),
        (r"""b'{"id": 99999, "ok": {}}\n'""", "answers no question"),
        (r"""b'{"id": true, "ok": {}}\n'""", "answers no question"),
        (r"""b'{"id": [1], "ok": {}}\n'""", "answers no question"),
        (r"b'{' + b'x' * (100 * 2**20)", "a line of more than"),
    ],
)
async def test_garbage_on_the_line_ends_the_process(environment_of: Make, line: str, reason: str) -> None:
    environment = environment_of(EVALUATES, process={"memory_mib": 1024})
    writing = f"view = memoryview({line})\nwhile view: view = view[os.write(line, view):]"
    code = f"{WIRE}\nos.set_blocking(line, True)\n{writing}"
    with pytest.raises(EnvironmentProcessLost, match=reason):
        await tried(environment, code)


async def test_answers_for_questions_that_were_not_asked_yet_are_no_answers(environment_of: Make) -> None:
    environment = environment_of(EVALUATES)
    early = """for number in range(1, 100): os.write(line, b'{"id": %d, "ok": {}}\\n' % number)"""
    code = f"{WIRE}\n{early}\nawait asyncio.sleep(60)"
    with pytest.raises((EnvironmentProcessLost, MisfitAnswer)):
        await tried(environment, code)


async def test_an_answer_that_is_too_long_is_an_error_of_its_own_episode(environment_of: Make) -> None:
    environment = environment_of(
        "async def act(play, text):\n    return Observation(messages=(Message('user', 'x' * 5 * 2**20),))"
    )
    with pytest.raises(RaisedInProcess, match="at most 4194304 pass"):
        await tried(environment, "x")


async def test_the_log_is_bounded_and_says_nothing_to_a_terminal(environment_of: Make) -> None:
    noisy = """
async def act(play, text):
    for i in range(200): print('\\x1b[2J' + 'n' * 10000)
    print('the \\x1b[31mend\\x07')
    os._exit(1)
"""
    environment = environment_of(noisy)
    with pytest.raises(EnvironmentProcessLost) as lost:
        await tried(environment, "x")
    assert len(str(lost.value)) < LOG_BYTES
    assert "\x1b" not in str(lost.value)
    assert "\x07" not in str(lost.value)
    assert "end" in str(lost.value)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        ("Rewards(True, {'a': math.nan})", "components.a = nan"),
        ("Rewards(True, {'a': math.inf})", "components.a = inf"),
        ("Rewards(True, {'a': 1e300})", "components.a = 1e+300"),
        ("Rewards(True, {'a': '1'})", "components.a = '1'"),
        ("Rewards(True, {'a': True})", "components.a = True"),
        ("Rewards(1, {})", "success = 1"),
        ("Rewards('yes', {})", "success = 'yes'"),
        ("Rewards(None, {})", "success = None"),
        ("Rewards(True, {str(i): 0.0 for i in range(65)})", "at most 64 items"),
        ("Rewards(True, {'a b': 1.0})", "should match pattern"),
    ],
)
async def test_a_reward_that_is_none_is_never_paid(environment_of: Make, score: str, reason: str) -> None:
    environment = environment_of(f"async def score(self): return {score}\nPlay.score = score")
    async with environment.session(environment.tasks("train")[0], None) as session:  # type: ignore[arg-type]
        with pytest.raises(MisfitAnswer) as misfit:
            await session.score()
    assert reason in str(misfit.value)


@pytest.mark.parametrize(
    "act",
    [
        "Observation(calls=(ToolCall('call-1', 'other', 'x', None, 0.0),))",
        "Observation(calls=(ToolCall('call-2', 'do', 'x', None, 0.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, 0.0),) * 2)",
        "Observation()",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, math.nan),))",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, -1.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', 'frozen!', 0.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', b'x'.decode() + chr(0), None, 0.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', chr(0xD800), None, 0.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', 7, None, 0.0),))",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, 0.0),), messages=(Message('root', 'x'),))",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, 0.0),), done=1)",
        "Observation(calls=(ToolCall('call-1', 'do', 'x', None, 0.0),), messages=(Message('user', 'x'),) * 2000)",
    ],
)
async def test_records_of_calls_that_were_not_made_are_refused(environment_of: Make, act: str) -> None:
    environment = environment_of(f"async def act(self, message): return {act}\nPlay.act = act")
    async with environment.session(environment.tasks("train")[0], None) as session:  # type: ignore[arg-type]
        with pytest.raises(MisfitAnswer):
            await session.act(AssistantMessage.calling("do", {}))


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ("[ToolSchema('do', '', {'type': 'object', 'properties': {'a': {'pattern': '(a+)+$'}}})]", "uses pattern"),
        ("[ToolSchema('do', '', {'type': 'object', 'patternProperties': {'(a+)+$': {}}})]", "uses patternProperties"),
        ("[ToolSchema('do', '', {'$ref': 'http://192.0.2.1/x'})]", r"uses \$ref"),
        ("[ToolSchema('do', '', {'$ref': '#'})]", r"uses \$ref"),
        ("[ToolSchema('do', '', {'allOf': [{}], 'unevaluatedProperties': True})]", "uses unevaluatedProperties"),
        ("[ToolSchema('do', '', {'properties': {'a': {'unevaluatedItems': {}}}})]", "uses unevaluatedItems"),
        ("[ToolSchema('do', '', {'properties': {'a': {'uniqueItems': True}}})]", "uses uniqueItems"),
        ("[ToolSchema('do', '', {'dependentSchemas': {'properties': {'$dynamicRef': '#'}}})]", r"uses \$dynamicRef"),
        ("[ToolSchema('do', '', {'$schema': 'x:', '$recursiveRef': '#'})]", r"uses \$recursiveRef"),
        ("[ToolSchema('do', '', {'anyOf': [{'minLength': 1}] * 500})]", "has 1002 parts"),
        ("[ToolSchema('do', '', {'type': [str(n) if n % 2 else n for n in range(100_000)]})]", "has 100002 parts"),
        ("[ToolSchema('do', '', {'enum': ['x' * 2_000_000]})]", "has 2003 parts"),
        ("[ToolSchema('do', '', {'type': 'nothing'})]", "no JSON schema"),
        ("[ToolSchema('a b', '', {'type': 'object'})]", "should match pattern"),
        ("[ToolSchema('do', '', [])]", "valid dictionary"),
        ("[ToolSchema(str(i)) for i in range(200)]", "at most 128"),
    ],
)
def test_a_tool_that_would_harm_the_engine_is_refused(environment_of: Make, tools: str, reason: str) -> None:
    environment = environment_of(f"Acting.tools = lambda self, task: {tools}")
    with pytest.raises(MisfitAnswer, match=reason):
        environment.tools(environment.tasks("train")[0])


@pytest.mark.parametrize(
    "tasks",
    [
        "[Task('a', 'heldout', 1, 'q', 'a')] * 3",
        "[Task('a', 'train', -1, 'q', 'a')] * 3",
        "[Task('', 'train', 1, 'q', 'a')] * 3",
        "[Task('a', 'train', 1, None, 'a')] * 3",
        "[Task('a', 'train', 1, chr(0), 'a')] * 3",
        "type('Many', (), {'__len__': lambda self: 2**40})()",
    ],
)
def test_tasks_that_are_none_are_refused(environment_of: Make, tasks: str) -> None:
    environment = environment_of(f"Acting.tasks = lambda self, split: {tasks}")
    with pytest.raises(MisfitAnswer):
        environment.tasks("train")[0]


async def test_a_package_cannot_answer_in_the_place_of_its_start(environment_of: Make) -> None:
    early = f'{WIRE}\nos.write(line, b\'{{"id": 1, "ok": {{"type": 7, "restorable": "yes"}}}}\\n\')'
    with pytest.raises(UnusableEnvironment, match="does not fit the contract"):
        environment_of("", early)


async def test_threads_count_as_processes(hostile: ProcessEnvironment) -> None:
    code = """
made = 0
try:
    for made in range(200): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
except RuntimeError: pass
return made
"""
    assert int(await tried(hostile, code)) < 32
    assert threading.active_count() < 200


async def test_there_is_no_sandbox_to_take(hostile: ProcessEnvironment) -> None:
    assert "has no sandboxes" in await tried(hostile, "play.sandboxes.acquire()")
