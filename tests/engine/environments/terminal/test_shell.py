"""The shell goes on between calls, in a real sandbox; what a policy does to it, it does to itself."""

import pytest

from engine.environments.terminal.shell import Shell
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.engine.environments.impostor import answer_once

SPEC = SandboxSpec(memory_mib=512, processes=64, timeout_s=30, terminal=True, snapshots=False, output_bytes=2**16)

HEAD = '{"left_out_bytes": 0, "head_bytes": 0, "exit_code": 0, "timed_out": false, "shell_ended": false, "seconds": %s}'


@pytest.fixture
async def shell():
    async with opened(SPEC) as sandbox:
        yield Shell(sandbox, {"GIVEN": "by the task"}, kept_bytes=400)


async def output(shell: Shell, command: str, timeout_s: float = 20) -> str:
    return (await shell.run(command, timeout_s)).output


async def test_folder_variables_functions_and_jobs_stay(shell):
    await output(shell, "cd /tmp; x=5; f() { echo f$1; }; export y=6; sleep 60 & z=1")
    assert await output(shell, "pwd; echo $x $GIVEN; f 7; sh -c 'echo $y'; jobs | grep -c sleep") == (
        "/tmp\n5 by the task\nf7\n6\n1\n"
    )


async def test_it_is_a_terminal(shell):
    assert await output(shell, "test -t 0 && test -t 1 && tty && stty size") == "/dev/pts/0\n50 200\n"


async def test_exit_codes_and_errors_of_syntax_are_reported(shell):
    assert (await shell.run("false", 20)).exit_code == 1
    failed = await shell.run("if then", 20)
    assert failed.exit_code == 2
    assert "syntax error" in failed.output
    assert await output(shell, "cat <<END\n$((1 + 1))\nEND") == "2\n"


async def test_a_timeout_interrupts_the_command_and_keeps_the_shell(shell):
    await output(shell, "x=5")
    for command in ("sleep 100", "cat", "trap '' INT; sleep 100; trap - INT"):
        result = await shell.run(command, 0.5)
        assert (result.timed_out, result.ended) == (True, False), command
        assert result.seconds < 10
    assert await output(shell, "echo $x") == "5\n"


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(shell):
    text = await output(shell, "seq 100000")
    assert text.startswith("1\n2\n")
    assert text.endswith("\n99999\n100000\n")
    assert "[588495 bytes left out]" in text
    assert len(text) < 500
    flood = await shell.run("yes", 0.5)
    assert flood.timed_out
    assert len(flood.output) < 500


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$", "exec true", "sleep 100 & exit", "set -e; false"])
async def test_a_shell_that_ends_says_so_and_another_follows(shell, end):
    await output(shell, "x=5; cd /tmp")
    ended = await shell.run(end, 20)
    assert (ended.ended, ended.timed_out) == (True, False)
    after = await shell.run("echo x=$x; pwd", 20)
    assert (after.output, after.fresh) == ("x=\n/work\n", True)
    assert not (await shell.run("true", 20)).fresh


async def test_a_policy_that_kills_the_server_gets_another_shell(shell):
    await output(shell, "x=5")
    killed = await shell.run("kill -9 $PPID", 20)
    assert killed.ended
    assert await output(shell, "echo x=$x") == "x=\n"


async def test_a_command_that_ends_the_server_runs_once_and_took_its_time(shell):
    await output(shell, "true")
    killed = await shell.run("echo x >> /tmp/runs; kill -9 $PPID; sleep 20", 20)
    assert (killed.ended, killed.fresh, killed.exit_code) == (True, False, None)
    assert killed.seconds > 0
    after = await shell.run("cat /tmp/runs", 20)
    assert (after.output, after.fresh) == ("x\n", True)


@pytest.mark.parametrize("head", ["[" * 60_000, HEAD.replace(": 0,", ": 1e999,", 1) % 0, "7", "{}", "no JSON"])
async def test_a_server_that_answers_what_is_no_answer_is_a_shell_that_ended(shell, head):
    shell._name = "impostor"
    await answer_once(shell._sandbox, "impostor", head)
    bent = await shell.run("true", 20)
    assert (bent.ended, bent.exit_code) == (True, None)
    assert await output(shell, "echo a") == "a\n"


@pytest.mark.parametrize("seconds", ["NaN", "-1e9", "1e999"])
async def test_the_time_of_a_command_is_not_what_its_server_says(shell, seconds):
    shell._name = "impostor"
    await answer_once(shell._sandbox, "impostor", HEAD % seconds)
    bent = await shell.run("true", 20)
    assert (bent.ended, 0 < bent.seconds < float("inf")) == (False, True)


async def test_prompts_modes_and_marks_of_the_policy_do_no_harm(shell):
    await output(shell, "PS1='$ '; PROMPT_COMMAND='echo noise'")
    assert (await output(shell, "echo a")).startswith("a\n")
    await output(shell, "unset PROMPT_COMMAND; stty raw echo; printf '\\036over-\\036ready-'")
    assert await output(shell, "echo b") == "b\n"
    assert (await shell.run("printf 'no newline'", 20)).output == "no newline"


async def test_an_output_that_is_no_text_is_replaced(shell):
    assert await output(shell, "printf 'a\\377b'") == "a\N{REPLACEMENT CHARACTER}b"


async def test_full_folders_take_no_shell_away(shell):
    await output(shell, "x=5; head -c 100000000 /dev/zero > /tmp/all; head -c 100000000 /dev/zero > /work/all")
    await output(shell, "for i in 1 2 3; do head -c 4095 /dev/zero > /tmp/rest$i; done")
    assert await output(shell, "echo $x") == "5\n"
    await output(shell, "head -c 100000000 /dev/zero > /dev/shm/all")
    assert (await shell.run(f"echo {'y' * 9000}", 20)).output.startswith("the command cannot be run: No space left")
