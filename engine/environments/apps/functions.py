"""The functions of the apps: what each takes, does and gives, from which its documentation follows too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.environments.apps.database import Database, Row
from engine.environments.tool_schemas import LONGEST_TEXT
from engine.spec.trajectory import ErrorClass

APPS = ("contacts", "calendar", "mail", "files", "payments", "notes")
PAGE = 4
"""Rows on a page of a list."""
LARGEST_NUMBER = 10**6
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
HOURS = range(8, 20)
WALLET = 1
"""The only row of the table ``wallet``."""

Kind = Literal["text", "number"]
Arguments = Mapping[str, Any]


class Refused(Exception):
    """What the policy reads of a call that fails."""

    def __init__(self, error_class: ErrorClass, reason: str) -> None:
        super().__init__(reason)
        self.error_class: ErrorClass = error_class


@dataclass(frozen=True, slots=True)
class Function:
    about: str
    parameters: Mapping[str, Kind]
    """Without the token."""
    run: Callable[[Database, Arguments], tuple[Database, Any]]
    """Gives the database behind the call, and what the call gives.  Raises ``Refused``."""
    optional: tuple[str, ...] = ()


def documentation(name: str) -> str:
    """What a policy reads of a function."""
    function = FUNCTIONS[name]
    listed = [
        f"{parameter} ({kind}{', may be left out' if parameter in function.optional else ''})"
        for parameter, kind in _kinds(name).items()
    ]
    paged = f" Gives {PAGE} rows, and as next the number of the next page." if "page" in function.parameters else ""
    return f"{name}: {function.about} Arguments: {', '.join(listed)}.{paged}"


def faults_in(name: str, arguments: Arguments) -> list[str]:
    """What is wrong with the arguments; empty where they fit the documentation."""
    kinds, optional = _kinds(name), FUNCTIONS[name].optional
    missing = [f"{field} is missing" for field in kinds if field not in arguments and field not in optional]
    unknown = [f"{field[:LONGEST_TEXT]} is not an argument" for field in arguments if field not in kinds]
    known = [field for field in kinds if field in arguments]
    unfit = [f"{field} is no {kinds[field]}" for field in known if not _fits(kinds[field], arguments[field])]
    return [*missing, *unknown, *unfit]


def _kinds(name: str) -> dict[str, Kind]:
    """The kinds of each argument; every function but a login takes a token."""
    token: dict[str, Kind] = {} if name.endswith(".login") else {"token": "text"}
    return token | dict(FUNCTIONS[name].parameters)


def _fits(kind: Kind, value: object) -> bool:
    if kind == "number":
        return type(value) is int and 0 <= value <= LARGEST_NUMBER
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


# ---- what the functions do ----


def _page(rows: list[dict[str, Any]], arguments: Arguments) -> dict[str, Any]:
    """The rows of a page, and the number of the next one where there is one."""
    page = arguments.get("page", 1)
    pages = max(1, -(-len(rows) // PAGE))
    if not 1 <= page <= pages:
        raise Refused("index", f"the last page is {pages}")
    return {"rows": rows[(page - 1) * PAGE : page * PAGE], "next": page + 1 if page < pages else None}


def _row(database: Database, table: str, number: int) -> Row:
    if number not in database.tables[table]:
        raise Refused("index", "no such id")
    return database.tables[table][number]


def _moment(arguments: Arguments) -> Row:
    if arguments["day"] not in DAYS or arguments["hour"] not in HOURS:
        raise Refused("value", _MOMENTS)
    return {"day": arguments["day"], "hour": arguments["hour"]}


def _address(arguments: Arguments) -> str:
    if "@" not in arguments["to"]:
        raise Refused("value", "to is no address")
    return str(arguments["to"])


def _listed(table: str, *fields: str) -> Callable[[Database, Arguments], tuple[Database, Any]]:
    def run(database: Database, arguments: Arguments) -> tuple[Database, Any]:
        rows = [{name: row[name] for name in ("id", *fields)} for row in database.rows(table)]
        return database, _page(rows, arguments)

    return run


def _searched(
    table: str, within: tuple[str, ...], fields: tuple[str, ...]
) -> Callable[[Database, Arguments], tuple[Database, Any]]:
    def run(database: Database, arguments: Arguments) -> tuple[Database, Any]:
        text = arguments["text"].lower()
        rows = [row for row in database.rows(table) if any(text in str(row[name]).lower() for name in within)]
        return database, _page([{name: row[name] for name in ("id", *fields)} for row in rows], arguments)

    return run


def _deleted(table: str) -> Callable[[Database, Arguments], tuple[Database, Any]]:
    def run(database: Database, arguments: Arguments) -> tuple[Database, Any]:
        _row(database, table, arguments["id"])
        return database.removed(table, arguments["id"]), "deleted"

    return run


def _read(table: str) -> Callable[[Database, Arguments], tuple[Database, Any]]:
    return lambda database, arguments: (database, dict(_row(database, table, arguments["id"])))


def _update_contact(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    _row(database, "contacts", arguments["id"])
    return database.changed("contacts", arguments["id"], {"phone": arguments["phone"]}), "updated"


def _list_day(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    rows = [row for row in database.rows("events") if row["day"] == arguments["day"]]
    return database, _page([{name: row[name] for name in ("id", "hour", "title")} for row in rows], arguments)


def _add_event(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    return database.added("events", {**_moment(arguments), "title": arguments["title"]}), "added"


def _move_event(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    _row(database, "events", arguments["id"])
    return database.changed("events", arguments["id"], _moment(arguments)), "moved"


def _send_mail(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    row = {"to": _address(arguments), "subject": arguments["subject"], "text": arguments["text"]}
    return database.added("sent", row), "sent"


def _file_at(database: Database, path: str) -> int:
    number = next((number for number, row in database.tables["files"].items() if row["path"] == path), None)
    if number is None:
        raise Refused("index", "no such file")
    return number


def _read_file(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    number = _file_at(database, arguments["path"])
    return database, {"id": number, **database.tables["files"][number]}


def _write_file(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    """A file that is there is written over."""
    path, text = arguments["path"], arguments["text"]
    there = [number for number, row in database.tables["files"].items() if row["path"] == path]
    if there:
        return database.changed("files", there[0], {"text": text}), "written"
    return database.added("files", {"path": path, "text": text}), "written"


def _delete_file(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    return database.removed("files", _file_at(database, arguments["path"])), "deleted"


def _send_money(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    amount, balance = arguments["amount"], int(database.tables["wallet"][WALLET]["balance"])
    if not 1 <= amount <= balance:
        raise Refused("value", f"amount is from 1 to {balance}")
    row = {"to": _address(arguments), "amount": amount, "note": arguments["note"]}
    return database.added("transfers", row).changed("wallet", WALLET, {"balance": balance - amount}), "sent"


def _add_note(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    return database.added("notes", {"title": arguments["title"], "text": arguments["text"]}), "added"


def _edit_note(database: Database, arguments: Arguments) -> tuple[Database, Any]:
    _row(database, "notes", arguments["id"])
    return database.changed("notes", arguments["id"], {"text": arguments["text"]}), "edited"


def _logs_in(app: str) -> Callable[[Database, Arguments], tuple[Database, Any]]:
    """The password is checked, and the token made, by the phone that holds them."""
    return lambda database, _: (replace(database, logged_in=database.logged_in | {app}), None)


_MOMENTS = f"A day is one of {', '.join(DAYS)}, an hour is from {HOURS[0]} to {HOURS[-1]}."
_PAGED: Mapping[str, Kind] = {"page": "number"}
_BY_ID: Mapping[str, Kind] = {"id": "number"}
FUNCTIONS: dict[str, Function] = {
    "contacts.search": Function(
        "Finds people by a part of their name or by what they are to you.",
        {"text": "text", **_PAGED},
        _searched("contacts", ("name", "relation"), ("name", "relation", "email")),
        ("page",),
    ),
    "contacts.read": Function("Shows a contact.", _BY_ID, _read("contacts")),
    "contacts.update": Function("Sets the phone of a contact.", {**_BY_ID, "phone": "text"}, _update_contact),
    "contacts.delete": Function("Deletes a contact.", _BY_ID, _deleted("contacts")),
    "calendar.list": Function("Lists the events of a day.", {"day": "text", **_PAGED}, _list_day, ("page",)),
    "calendar.add": Function(
        f"Adds an event. {_MOMENTS}", {"day": "text", "hour": "number", "title": "text"}, _add_event
    ),
    "calendar.move": Function(f"Moves an event. {_MOMENTS}", {**_BY_ID, "day": "text", "hour": "number"}, _move_event),
    "calendar.delete": Function("Deletes an event.", _BY_ID, _deleted("events")),
    "mail.list": Function(
        "Lists the mails that came, without their text.", _PAGED, _listed("mails", "from", "subject"), ("page",)
    ),
    "mail.read": Function("Shows a mail that came.", _BY_ID, _read("mails")),
    "mail.send": Function("Sends a mail to an address.", {"to": "text", "subject": "text", "text": "text"}, _send_mail),
    "mail.delete": Function("Deletes a mail that came.", _BY_ID, _deleted("mails")),
    "files.list": Function("Lists the files.", _PAGED, _listed("files", "path"), ("page",)),
    "files.read": Function("Shows a file.", {"path": "text"}, _read_file),
    "files.write": Function("Writes a file, over what is there.", {"path": "text", "text": "text"}, _write_file),
    "files.delete": Function("Deletes a file.", {"path": "text"}, _delete_file),
    "payments.balance": Function(
        "Shows your balance.", {}, lambda database, _: (database, dict(database.tables["wallet"][WALLET]))
    ),
    "payments.list": Function(
        "Lists what you have paid.", _PAGED, _listed("transfers", "to", "amount", "note"), ("page",)
    ),
    "payments.send": Function(
        "Pays an amount to an address.", {"to": "text", "amount": "number", "note": "text"}, _send_money
    ),
    "notes.search": Function(
        "Finds notes by a part of their title.", {"text": "text", **_PAGED},
        _searched("notes", ("title",), ("title",)), ("page",),
    ),
    "notes.read": Function("Shows a note.", _BY_ID, _read("notes")),
    "notes.add": Function("Adds a note.", {"title": "text", "text": "text"}, _add_note),
    "notes.edit": Function("Sets the text of a note.", {**_BY_ID, "text": "text"}, _edit_note),
    "notes.delete": Function("Deletes a note.", _BY_ID, _deleted("notes")),
} | {
    f"{app}.login": Function("Gives the token that the app's functions take.", {"password": "text"}, _logs_in(app))
    for app in APPS
}  # fmt: skip
