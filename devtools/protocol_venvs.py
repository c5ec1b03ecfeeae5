"""Other libraries of environments and of agents, each in a folder of its own: the peers of ``-m protocols`` tests.

Nothing of ours is in them: what plays their environments runs in a process that sees their folder alone, and agents are
copied into sandboxes.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devtools.errors import Unfit

INSTALL = ("-m", "pip", "install", "--quiet", "--no-compile")
PINNED = {
    "gem": "gem-llm==0.1.0",
    "openenv": "openenv-core==0.3.0",
    "rock": "rl-rock==1.11.0",
    "verifiers": "verifiers==0.4.0",
}
VARIABLE = "PALESTRA_PROTOCOL_VENVS"
"""It names the folder of the environments for the tests."""
AGENTS = ("openai==2.54.0", "anthropic==2.12.0", "mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0")
"""The third calls models through the fourth, whose newest version it would take; it imports the last and does not name
it."""
AGENTS_VARIABLE = "PALESTRA_AGENT_PACKAGES"
"""It names the folder of these packages for the tests."""


def made_in(home: Path) -> dict[str, Path]:
    """The folders by the variables that name them, made where they are missing.  Raises Unfit when pip fails."""
    folder = home / "protocols"
    for name, pinned in PINNED.items():
        venv = folder / name
        venv_command = [sys.executable, "-m", "venv", str(venv)]
        _make(venv, [pinned], [venv_command, [str(venv / "bin" / "python"), *INSTALL, pinned]])
    agents = folder / "agents"
    _make(agents, AGENTS, [[sys.executable, *INSTALL, "--target", str(agents), *AGENTS]])
    return {VARIABLE: folder, AGENTS_VARIABLE: agents}


def _make(folder: Path, pinned: Sequence[str], commands: Sequence[Sequence[str]]) -> None:
    complete, wanted = folder / "installed.txt", "\n".join(pinned)
    if complete.exists() and complete.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in commands:
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise Unfit(f"{' '.join(command[:4])} .. failed; its last lines stand above")
    complete.write_text(wanted)
