"""``python -m sandboxes serve``, ``token`` and ``sweep``."""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import ValidationError

from sandboxes.service.tokens import Quota, Role, Token, TokenFault, Tokens

if TYPE_CHECKING:
    from sandboxes.service.registration import Registration

Subcommands = argparse._SubParsersAction


def add_commands(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    _add_serve(commands)
    _add_token(commands)
    sweep = commands.add_parser("sweep", help="remove what owners that were killed left behind")
    sweep.add_argument("--json", action="store_true", help="print what was removed as JSON")
    sweep.add_argument("--dry-run", action="store_true", help="remove nothing, and print what would be")
    sweep.set_defaults(run=_sweep)


def default_tokens() -> Path:
    named = os.environ.get("PALESTRA_SANDBOX_TOKENS")
    return Path(named) if named else Path(os.environ.get("PALESTRA_HOME", ".palestra")) / "sandbox-tokens.json"


def _add_serve(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser("serve", help="offer sandboxes over HTTP")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    serve.add_argument("--port", type=int, default=8750, help="port to listen on; 0: any free one (%(default)s)")
    serve.add_argument("--sandboxes", type=int, help="how many sandboxes at once (1000)")
    serve.add_argument("--memory-mib", type=int, help="memory for all sandboxes (80 %% of what the machine has)")
    serve.add_argument("--tokens", type=Path, default=default_tokens(), help="the file of tokens (%(default)s)")
    serve.add_argument(
        "--drain-s", type=float, default=10.0, help="how long requests may take when it stops (%(default)s)"
    )
    serve.add_argument(
        "--special-egress", action="store_true", help="let rules open loopback, private, metadata ranges"
    )
    serve.add_argument("--admin", metavar="URL", help="register with this admin of several hosts")
    serve.add_argument("--admin-token-file", type=Path, help="a file with a token of its, made with --role host")
    serve.add_argument("--name", default=socket.gethostname(), help="the name to register by (%(default)s)")
    serve.add_argument("--advertise", help="the address by which the admin reaches this machine (--host)")
    serve.set_defaults(run=_serve)


def _add_token(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    token = commands.add_parser("token", help="who may use the service")
    token.add_argument("--tokens", type=Path, default=default_tokens(), help="the file of tokens (%(default)s)")
    verbs = token.add_subparsers(required=True, metavar="VERB")
    create = verbs.add_parser("create", help="make a token; its text is shown once")
    create.add_argument("name")
    create.add_argument("--owner", help="whose sandboxes are reached with it (the name)")
    create.add_argument(
        "--role", choices=get_args(Role), default="user",
        help="user: has sandboxes; admin: asks for others, without quota; host: registers itself (%(default)s)",
    )  # fmt: skip
    for field, about in Quota.model_fields.items():
        kind = float if about.annotation is float else int
        create.add_argument(f"--{field.replace('_', '-')}", type=kind, default=about.default, help=about.description)
    create.set_defaults(run=_create_token)
    listed = verbs.add_parser("list", help="show names, owners and quotas")
    listed.add_argument("--json", action="store_true")
    listed.set_defaults(run=_list_tokens)
    revoke = verbs.add_parser("revoke", help="from now on it is no token; its sandboxes are closed when idle")
    revoke.add_argument("name")
    revoke.set_defaults(run=_revoke_token)


def _serve(options: argparse.Namespace) -> int:
    # Imported here: `token` and `sweep` need no web server.
    from sandboxes.service.capacity import Capacity
    from sandboxes.service.logs import log_to_stderr
    from sandboxes.service.serving import NotStarted, serve
    from sandboxes.service.settings import Settings

    log_to_stderr()
    capacity = Capacity.detected(options.sandboxes, options.memory_mib)
    settings = Settings(
        options.tokens,
        capacity,
        options.host,
        options.port,
        drain_s=options.drain_s,
        special_egress=options.special_egress,
    )
    try:
        serve(settings, _registration(options))
    except NotStarted as error:
        return refused(str(error))
    return 0


def _registration(options: argparse.Namespace) -> "Registration | None":
    from sandboxes.backends.remote.host_address import EXAMPLE, AddressFault, parsed, without_secrets
    from sandboxes.service.registration import Registration
    from sandboxes.service.serving import NotStarted

    if options.admin is None:
        return None
    if options.admin_token_file is None:
        raise NotStarted("--admin needs --admin-token-file: a file with a token of the admin's, made with --role host")
    try:
        token = options.admin_token_file.read_text().strip()
    except OSError as error:
        raise NotStarted(f"--admin-token-file {options.admin_token_file}: {error.strerror}") from error
    registration = Registration(options.admin.rstrip("/"), token, options.name, options.advertise or options.host)
    for option, url in (("--admin", options.admin), ("--advertise", registration.url(options.port or 1))):
        try:
            parsed(url)
        except AddressFault as fault:
            raise NotStarted(f"{option} = '{without_secrets(url)}': {fault}; give one like {EXAMPLE}") from fault
    return registration


def _create_token(options: argparse.Namespace) -> int:
    quota = {field: getattr(options, field) for field in Quota.model_fields}
    try:
        _, text = Tokens(options.tokens).create(
            options.name, options.owner or options.name, Quota(**quota), options.role
        )
    except TokenFault as error:
        return refused(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        return refused(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}")
    print(text)
    print(f"shown once; kept as a hash in {options.tokens}", file=sys.stderr)
    return 0


def _list_tokens(options: argparse.Namespace) -> int:
    tokens = Tokens(options.tokens).listed()
    if options.json:
        print(json.dumps([_shown(token) for token in tokens]))
        return 0
    for token in tokens:
        made = time.strftime("%Y-%m-%d", time.gmtime(token.created_at))
        quota = ", ".join(f"{field} {value:g}" for field, value in token.quota.model_dump().items())
        state = "valid" if token.revoked_at is None else "revoked"
        print(f"{token.name}  {token.role}  owner {token.owner}  {state}  since {made}  {quota}")
    return 0


def _shown(token: Token) -> dict[str, object]:
    return token.model_dump(exclude={"digest"})


def _revoke_token(options: argparse.Namespace) -> int:
    try:
        Tokens(options.tokens).revoke(options.name)
    except TokenFault as error:
        return refused(str(error))
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from sandboxes.sweeper import sweep

    swept = sweep(remove=not options.dry_run)
    if options.json:
        print(json.dumps(swept.as_dict()))
    else:
        print("\n".join(swept.lines()) or "nothing was left behind")
    return 1 if swept.failed else 0


def refused(message: str) -> int:
    print(f"sandboxes: {message}", file=sys.stderr)
    return 2
