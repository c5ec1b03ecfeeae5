"""The errands of apps: procedural, numbered, and split by their text; and how each is run.

Errand ``n`` of a split is a function of (dataset seed, split, n, level) and nothing else.  An errand's way is written
as a person would go it, from what the calls give; run once when the errand is made, it says what has to change.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from engine.environments.apps.agent import Agent
from engine.environments.apps.content import (
    EVENTS,
    NOTES,
    PURPOSES,
    SUBJECTS,
    TEXTS,
    Content,
    Person,
    drawn_content,
    phone_number,
)
from engine.environments.apps.database import Database, Row
from engine.environments.apps.functions import DAYS, HOURS
from engine.environments.apps.phone import Phone
from engine.seeds import derived_seed
from engine.spec.trajectory import Split

HELDOUT_SHARE = 5
"""One errand in this many is held out."""

Way = Callable[[Agent], str | None]
"""Runs the errand; gives the answer where something was asked."""


@dataclass(frozen=True, slots=True)
class Errand:
    text: str
    content: Content
    way: Way


@dataclass(frozen=True, slots=True)
class Problem:
    """An errand on a phone."""

    text: str
    phone: Phone
    start: Database
    way: Way

    def run(self) -> Agent:
        """The demonstrator, when it is done.  Its ``answer`` is what was asked for, if anything was."""
        agent = Agent(self.phone, self.start)
        agent.answer = self.way(agent)
        return agent


def problem_of(seed: int, split: Split, number: int, level: int) -> Problem:
    """The first draw of this errand's own stream that belongs to the split."""
    rng = Random(derived_seed("apps", seed, split, number, level))
    while True:
        errand = rng.choice(ERRANDS[level])(drawn_content(rng), rng)
        start = errand.content.database(rng)
        if split_of(errand.text, start) == split:
            phone = Phone(str(rng.randint(1000, 9999)), rng.getrandbits(32))
            return Problem(f"password {phone.password}. {errand.text}", phone, start, errand.way)


def split_of(text: str, start: Database) -> Split:
    """By everything that the errand finds."""
    digest = hashlib.blake2b(f"{text} {json.dumps(start.tables)}".encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


# ---- one app ----


def _set_phone(content: Content, rng: Random) -> Errand:
    person = _someone(content, rng)
    phone = phone_number(rng, {person.phone for person in content.people})

    def way(agent: Agent) -> None:
        contact = agent.contact(person.asked)
        agent.call("contacts.update", id=contact["id"], phone=phone)

    return Errand(f"set the phone of {person.text} to {phone}.", content, way)


def _move_event(content: Content, rng: Random) -> Errand:
    event = rng.choice(content.events)
    day, title = event["day"], event["title"]
    hour = rng.choice([hour for hour in HOURS if hour != event["hour"]])

    def way(agent: Agent) -> None:
        found = agent.found_in("calendar.list", {"day": day}, title=title)
        agent.call("calendar.move", id=found["id"], day=day, hour=hour)

    return Errand(f"move {title} on {day} to {hour}.", content, way)


def _set_note(content: Content, rng: Random) -> Errand:
    note = rng.choice(content.notes)
    text = rng.choice([text for text in TEXTS if text != note["text"]])

    def way(agent: Agent) -> None:
        found = agent.found_in("notes.search", {"text": note["title"]}, title=note["title"])
        agent.call("notes.edit", id=found["id"], text=text)

    return Errand(f"set the note {note['title']} to: {text}.", content, way)


def _asked_payment(content: Content, rng: Random) -> Errand:
    note = rng.choice(content.transfers)["note"]

    def way(agent: Agent) -> str:
        return str(agent.found_in("payments.list", {}, note=note)["amount"])

    return Errand(f"how much did i pay for {note}? answer with the number.", content, way)


# ---- two apps ----


def _write_to(content: Content, rng: Random) -> Errand:
    person, subject, text = _someone(content, rng), rng.choice(SUBJECTS), rng.choice(TEXTS)

    def way(agent: Agent) -> None:
        contact = agent.contact(person.asked)
        agent.call("mail.send", to=contact["email"], subject=subject, text=text)

    return Errand(f"mail {person.text}, subject {subject}: {text}.", content, way)


def _pay(content: Content, rng: Random) -> Errand:
    person, amount, purpose = _someone(content, rng), rng.randint(11, 98), rng.choice(PURPOSES)

    def way(agent: Agent) -> None:
        contact = agent.contact(person.asked)
        agent.call("payments.send", to=contact["email"], amount=amount, note=purpose)

    return Errand(f"pay {person.text} {amount} for {purpose}.", content, way)


def _accept(content: Content, rng: Random) -> Errand:
    mail, (title, day, hour) = rng.choice(content.mails), _moment(rng)
    asking = replace(content, mails=_with(content.mails, mail, "text", f"{title} on {day} at {hour}"))

    def way(agent: Agent) -> None:
        found = agent.found_in("mail.list", {}, subject=mail["subject"])
        text = agent.call("mail.read", id=found["id"])["text"]
        title, _, day, _, hour = text.split(" ")
        agent.call("calendar.add", day=day, hour=int(hour), title=title)

    return Errand(f"add the event of the mail {mail['subject']} to the calendar.", asking, way)


def _export(content: Content, rng: Random) -> Errand:
    note, path = rng.choice(content.notes), "export.txt"

    def way(agent: Agent) -> None:
        found = agent.found_in("notes.search", {"text": note["title"]}, title=note["title"])
        text = agent.call("notes.read", id=found["id"])["text"]
        agent.call("files.write", path=path, text=text)

    return Errand(f"save the note {note['title']} as the file {path}.", content, way)


# ---- three and more ----


def _settle(content: Content, rng: Random) -> Errand:
    person, amount, purpose = rng.choice(content.people), rng.randint(11, 98), rng.choice(PURPOSES)
    file = rng.choice(content.files)
    owing = replace(content, files=_with(content.files, file, "text", f"{person.name} {amount} {purpose}"))

    def way(agent: Agent) -> None:
        text = agent.call("files.read", path=file["path"])["text"]
        given, surname, amount, purpose = text.split(" ")
        contact = agent.contact(f"{given} {surname}")
        agent.call("payments.send", to=contact["email"], amount=int(amount), note=purpose)
        agent.call("mail.send", to=contact["email"], subject="paid", text=purpose)

    return Errand(f"pay what {file['path']} says, and mail the payee, subject paid: the purpose.", owing, way)


def _invite(content: Content, rng: Random) -> Errand:
    person, (title, day, hour) = rng.choice(content.people), _moment(rng)
    file = rng.choice(content.files)
    text = f"{title} with {person.name} on {day} at {hour}"
    planned = replace(content, files=_with(content.files, file, "text", text))

    def way(agent: Agent) -> None:
        text = agent.call("files.read", path=file["path"])["text"]
        title, _, given, surname, _, day, _, hour = text.split(" ")
        agent.call("calendar.add", day=day, hour=int(hour), title=title)
        contact = agent.contact(f"{given} {surname}")
        agent.call("mail.send", to=contact["email"], subject=title, text=day)

    return Errand(f"add the event of {file['path']}, and mail its guest, subject the title: the day.", planned, way)


def _repay(content: Content, rng: Random) -> Errand:
    mail, amount, purpose = rng.choice(content.mails), rng.randint(11, 98), rng.choice(PURPOSES)
    title = rng.choice([title for title in NOTES if title not in {note["title"] for note in content.notes}])
    owing = replace(content, mails=_with(content.mails, mail, "text", f"{amount} for {purpose}"))

    def way(agent: Agent) -> None:
        found = agent.found_in("mail.list", {}, subject=mail["subject"])
        amount, _, purpose = agent.call("mail.read", id=found["id"])["text"].split(" ")
        agent.call("payments.send", to=found["from"], amount=int(amount), note=purpose)
        agent.call("notes.add", title=title, text=purpose)

    return Errand(f"pay its sender what the mail {mail['subject']} asks, and note the purpose as {title}.", owing, way)


ERRANDS: dict[int, tuple[Callable[[Content, Random], Errand], ...]] = {
    1: (_set_phone, _move_event, _set_note, _asked_payment),
    2: (_write_to, _pay, _accept, _export),
    3: (_settle, _invite, _repay),
}


@dataclass(frozen=True, slots=True)
class _Named:
    asked: str
    """What finds the person."""
    text: str


def _someone(content: Content, rng: Random) -> _Named:
    """A person by the full name or by what she is to the user."""
    person: Person = rng.choice(content.people)
    by_name = rng.random() < 0.5
    return _Named(person.name, person.name) if by_name else _Named(person.relation, f"my {person.relation}")


def _moment(rng: Random) -> tuple[str, str, int]:
    return rng.choice(EVENTS), rng.choice(DAYS), rng.choice(HOURS)


def _with(rows: tuple[Row, ...], row: Row, name: str, value: str) -> tuple[Row, ...]:
    """The rows, one of which says something else."""
    return tuple({**other, name: value} if other is row else other for other in rows)
