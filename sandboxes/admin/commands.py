"""``python -m sandboxes admin`` and ``hosts``."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from sandboxes.admin.hosts_file import HostEntry, HostFault, HostsFile
from sandboxes.service.commands import Subcommands, refused

NAME_REMEDY = "give up to 63 letters, digits and . _ -, the first a letter or a digit, and an address of 300 characters"


def add_commands(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    _add_admin(commands)
    _add_hosts(commands)


def default_file(variable: str, name: str) -> Path:
    named = os.environ.get(variable)
    return Path(named) if named else Path(os.environ.get("PALESTRA_HOME", ".palestra")) / name


def _hosts_file() -> Path:
    return default_file("PALESTRA_SANDBOX_HOSTS", "sandbox-hosts.json")


def _add_admin(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    admin = commands.add_parser("admin", help="offer the sandboxes of several hosts at one address")
    tokens = default_file("PALESTRA_SANDBOX_ADMIN_TOKENS", "sandbox-admin-tokens.json")
    admin.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    admin.add_argument("--port", type=int, default=8760, help="port to listen on; 0: any free one (%(default)s)")
    admin.add_argument("--hosts-file", type=Path, default=_hosts_file(), help="the file of hosts (%(default)s)")
    admin.add_argument("--tokens", type=Path, default=tokens, help="the file of tokens of its users (%(default)s)")
    admin.add_argument(
        "--drain-s", type=float, default=10.0, help="how long requests may take when it stops (%(default)s)"
    )
    admin.set_defaults(run=_serve_admin)


def _add_hosts(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    hosts = commands.add_parser("hosts", help="which hosts an admin has; it sees a change at once")
    hosts.add_argument("--hosts-file", type=Path, default=_hosts_file(), help="the file of hosts (%(default)s)")
    verbs = hosts.add_subparsers(required=True, metavar="VERB")
    add = verbs.add_parser("add", help="add a host; its token of the role admin is read from stdin")
    add.add_argument("name")
    add.add_argument("url", help="where the admin reaches it, e.g. http://10.0.0.7:8750")
    add.set_defaults(run=_add_host)
    for verb, about, run in (
        ("drain", "give it no new sandboxes; those that it has stay", _drain),
        ("resume", "give it sandboxes again", _resume),
        ("remove", "forget it; what it has is lost to its users", _remove),
    ):
        parser = verbs.add_parser(verb, help=about)
        parser.add_argument("name")
        parser.set_defaults(run=run)
    listed = verbs.add_parser("list", help="show names and addresses; /v1/stats of the admin says how they are")
    listed.add_argument("--json", action="store_true")
    listed.set_defaults(run=_list_hosts)


def _serve_admin(options: argparse.Namespace) -> int:
    # Imported here: `hosts` needs no web server.
    from sandboxes.admin.app import make_app
    from sandboxes.admin.settings import AdminSettings
    from sandboxes.service.logs import log_to_stderr
    from sandboxes.service.serving import NotStarted, Serving, refuse_open_door, run_until_signal

    log_to_stderr()
    settings = AdminSettings(
        options.tokens, options.hosts_file, options.host, options.port, drain_s=options.drain_s
    )  # fmt: skip

    async def serve() -> None:
        await run_until_signal(Serving(settings, make_app(settings)), event="admin serving")

    try:
        refuse_open_door(settings)
        asyncio.run(serve())
    except NotStarted as error:
        return refused(str(error))
    return 0


def _add_host(options: argparse.Namespace) -> int:
    token = sys.stdin.readline().strip()
    if not token:
        return refused(
            "no token on stdin: make one at the host with `python -m sandboxes token create NAME --role admin`"
        )
    try:
        HostsFile(options.hosts_file).add(HostEntry(name=options.name, url=options.url, token=token))
    except HostFault as error:
        return refused(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        context = first.get("ctx", {})
        value, remedy = context.get("shown", first["input"]), context.get("remedy", NAME_REMEDY)
        return refused(f"{'.'.join(map(str, first['loc']))} = {value!r}: {first['msg']}; {remedy}")
    return 0


def _drain(options: argparse.Namespace) -> int:
    return _changed(options, lambda file: file.drain(options.name, True))


def _resume(options: argparse.Namespace) -> int:
    return _changed(options, lambda file: file.drain(options.name, False))


def _remove(options: argparse.Namespace) -> int:
    return _changed(options, lambda file: file.remove(options.name))


def _changed(options: argparse.Namespace, change: Callable[[HostsFile], None]) -> int:
    try:
        change(HostsFile(options.hosts_file))
    except HostFault as error:
        return refused(str(error))
    return 0


def _list_hosts(options: argparse.Namespace) -> int:
    entries = HostsFile(options.hosts_file).entries().values()
    if options.json:
        print(json.dumps([entry.model_dump(exclude={"token"}) for entry in entries]))
        return 0
    for entry in entries:
        origin = "written down" if entry.registered_by is None else "registered itself"
        print(f"{entry.name}  {entry.url}  {origin}{'  draining' if entry.draining else ''}")
    return 0
