"""What is in the apps before an errand begins: people, events, mails, files, payments and notes, drawn at random."""

from collections.abc import Set
from dataclasses import dataclass
from random import Random

from engine.environments.apps.database import Database, Row
from engine.environments.apps.functions import DAYS, HOURS, WALLET

GIVEN_NAMES = ("Ada", "Ben", "Cleo", "Dara", "Emil", "Faye", "Gus", "Hana")
SURNAMES = ("Brook", "Stone", "Field", "Marsh", "Lake", "Hill", "Wood", "Frost")
RELATIONS = ("dentist", "sister", "boss", "landlord", "coach", "neighbor", "lawyer", "tutor")
HOSTS = ("post.net", "mail.org")
EVENTS = ("dinner", "yoga", "standup", "lunch", "review", "concert")
SUBJECTS = ("invitation", "reminder", "receipt", "update", "question", "minutes", "offer", "thanks", "forms")
NOTES = ("garden", "garden plan", "shopping", "books", "books to buy", "travel", "ideas")
TEXTS = ("buy milk", "call back", "bring the keys", "water the roses", "all is fine", "pack the tent", "see page two")
FILES = ("bills", "agenda", "packing", "recipes", "journal", "backup")
PURPOSES = ("rent", "tickets", "groceries", "gift", "repair", "taxi", "books")
PEOPLE = 6
MAILS = (4, 7)
"""From, to."""


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    relation: str
    email: str
    phone: str


@dataclass(frozen=True, slots=True)
class Content:
    people: tuple[Person, ...]
    events: tuple[Row, ...]
    mails: tuple[Row, ...]
    files: tuple[Row, ...]
    transfers: tuple[Row, ...]
    notes: tuple[Row, ...]
    balance: int

    def database(self, rng: Random) -> Database:
        """With ids between 10 and 99, each once."""
        ids = iter(rng.sample(range(10, 100), 80))
        contacts = [_row_of(person) for person in self.people]
        tables = {
            name: {next(ids): row for row in rows}
            for name, rows in (
                ("contacts", contacts), ("events", self.events), ("mails", self.mails), ("files", self.files),
                ("transfers", self.transfers), ("notes", self.notes),
            )
        }  # fmt: skip
        return Database({**tables, "sent": {}, "wallet": {WALLET: {"balance": self.balance}}})


def _row_of(person: Person) -> Row:
    return {"name": person.name, "relation": person.relation, "email": person.email, "phone": person.phone}


def phone_number(rng: Random, others: Set[str] = frozenset()) -> str:
    """One that is none of the others."""
    while (number := f"555-{rng.randint(1000, 9999)}") in others:
        pass
    return number


def drawn_content(rng: Random) -> Content:
    """Two of the people have the same given name, and titles begin alike."""
    people = _people(rng)
    subjects = rng.sample(SUBJECTS, rng.randint(*MAILS))
    return Content(
        people=people,
        events=tuple(_events(rng)),
        mails=tuple({"from": rng.choice(people).email, "subject": s, "text": rng.choice(TEXTS)} for s in subjects),
        files=tuple({"path": f"{name}.txt", "text": rng.choice(TEXTS)} for name in rng.sample(FILES, 4)),
        transfers=tuple(
            {"to": rng.choice(people).email, "amount": amount, "note": note}
            for note, amount in zip(rng.sample(PURPOSES, 6), rng.sample(range(11, 99), 6), strict=True)
        ),
        notes=tuple({"title": title, "text": rng.choice(TEXTS)} for title in rng.sample(NOTES, 4)),
        balance=rng.randint(200, 999),
    )


def _people(rng: Random) -> tuple[Person, ...]:
    given = rng.sample(GIVEN_NAMES, PEOPLE - 1)
    names = [*given, rng.choice(given)]
    rng.shuffle(names)
    return tuple(
        Person(f"{name} {surname}", relation, f"{surname.lower()}@{rng.choice(HOSTS)}", phone_number(rng))
        for name, surname, relation in zip(
            names, rng.sample(SURNAMES, PEOPLE), rng.sample(RELATIONS, PEOPLE), strict=True
        )
    )


def _events(rng: Random) -> list[Row]:
    """Some titles occur on several days, none twice on one."""
    slots = rng.sample([(day, title) for day in DAYS for title in EVENTS], 9)
    return [{"day": day, "hour": rng.choice(HOURS), "title": title} for day, title in slots]
