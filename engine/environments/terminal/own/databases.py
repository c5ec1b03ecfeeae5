"""Databases: SQLite files, through Python's own module."""

import sqlite3
from random import Random

from engine.environments.terminal.own.own_task import Maker, OwnTask, rows_are, text_is

_STAFF = "create table staff(id integer, name text, team text, pay integer);"
_TEAMS = ("north", "south", "east", "west")


def _script(*statements: str) -> bytes:
    database = sqlite3.connect(":memory:")
    for statement in statements:
        database.executescript(statement)
    content = bytearray(database.serialize())
    content[96:100] = bytes(4)  # the library's version, which is another one on another machine
    return bytes(content)


def _inserts(table: str, rows: list[tuple[object, ...]]) -> str:
    return "".join(f"insert into {table} values ({', '.join(map(_literal, row))});\n" for row in rows)


def _literal(value: object) -> str:
    if value is None:
        return "null"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _staff(rng: Random, number: int) -> list[tuple[object, ...]]:
    return [(i, f"person{i:02}", rng.choice(_TEAMS), rng.randint(28, 95) * 1000) for i in range(1, number + 1)]


def best_paid(rng: Random) -> OwnTask:
    staff = _staff(rng, 40)
    best = dict[str, str]()
    for _, name, team, pay in sorted(staff, key=lambda row: (-int(str(row[3])), str(row[1]))):
        best.setdefault(str(team), f"{team} {name} {pay}")
    return OwnTask(
        name="databases-best-paid",
        instruction="""
/work/staff.db is an SQLite database with a table staff(id, name, team, pay). Write /work/best.txt: a line
`team name pay` for the best paid person of each team, in alphabetical order of the teams. Of people who are paid the
same, take the one whose name comes first.""",
        files={"staff.db": _script(_STAFF, _inserts("staff", staff))},
        solution="""
python3 - <<'CODE'
import sqlite3
rows = sqlite3.connect("staff.db").execute("select team, name, pay from staff order by team, pay desc, name")
best = {}
for team, name, pay in rows:
    best.setdefault(team, "%s %s %d" % (team, name, pay))
open("best.txt", "w").write("\\n".join(best[team] for team in sorted(best)) + "\\n")
CODE""",
        checks=[text_is("best.txt", "\n".join(best[team] for team in sorted(best)))],
        handed_in=["best.txt"],
        difficulty="easy",
    )


def no_duplicates(rng: Random) -> OwnTask:
    contacts = [(f"p{i}@example.org", rng.randint(1, 500)) for i in range(1, 21)]
    rows: list[tuple[object, ...]] = []
    for mail, seen in contacts:
        spelled = mail.upper() if rng.random() < 0.4 else mail
        rows += [(mail, seen), *([(spelled, rng.randint(1, 500))] if rng.random() < 0.6 else [])]
    rng.shuffle(rows)
    latest: dict[str, int] = {}
    for row in rows:
        key = str(row[0]).lower()
        latest[key] = max(latest.get(key, 0), int(str(row[1])))
    return OwnTask(
        name="databases-no-duplicates",
        instruction="""
/work/contacts.db has a table contacts(mail, seen) in which the same address stands several times, sometimes in
capitals. Change the table in place so that each address stands once, in small letters, with the greatest `seen` of
all its rows.""",
        files={"contacts.db": _script("create table contacts(mail text, seen integer);", _inserts("contacts", rows))},
        solution="""
python3 - <<'CODE'
import sqlite3
db = sqlite3.connect("contacts.db")
rows = db.execute("select lower(mail), max(seen) from contacts group by lower(mail)").fetchall()
db.execute("delete from contacts")
db.executemany("insert into contacts values (?, ?)", rows)
db.commit()
CODE""",
        checks=[
            rows_are(
                "contacts.db",
                "select mail, seen from contacts order by mail",
                [list(r) for r in sorted(latest.items())],
            )
        ],
        handed_in=["contacts.db"],
    )


def new_column(rng: Random) -> OwnTask:
    staff, raise_percent = _staff(rng, 24), rng.randint(3, 9)
    expected = [[i, name, team, pay, "senior" if int(str(pay)) >= 60000 else "junior"] for i, name, team, pay in staff]
    return OwnTask(
        name="databases-new-column",
        instruction=f"""
Give the table staff(id, name, team, pay) of /work/staff.db a further column `grade` of text behind the others: `senior`
for a pay of 60000 or more, else `junior`. Beside it, add a table raises(id, pay) with the pay of every junior raised by
{raise_percent} percent, rounded down to whole numbers.""",
        files={"staff.db": _script(_STAFF, _inserts("staff", staff))},
        solution=f"""
python3 - <<'CODE'
import sqlite3
db = sqlite3.connect("staff.db")
db.executescript('''
alter table staff add column grade text;
update staff set grade = case when pay >= 60000 then 'senior' else 'junior' end;
create table raises(id integer, pay integer);
insert into raises select id, pay * (100 + {raise_percent}) / 100 from staff where grade = 'junior';
''')
db.commit()
CODE""",
        checks=[
            rows_are("staff.db", "select * from staff order by id", expected),
            rows_are(
                "staff.db", "select id, pay from raises order by id",
                [[row[0], int(str(row[3])) * (100 + raise_percent) // 100] for row in expected if row[4] == "junior"],
            ),
        ],
        handed_in=["staff.db"],
        difficulty="hard",
    )  # fmt: skip


def imported_csv(rng: Random) -> OwnTask:
    rows = [(f"tool-{i}", rng.randint(0, 40), rng.choice(("", "blue", "green"))) for i in range(1, 31)]
    return OwnTask(
        name="databases-imported-csv",
        instruction="""
Make /work/stock.db, an SQLite database with a table stock(name text primary key, number integer, colour text), and put
/work/stock.csv (name,number,colour) into it. An empty colour is null, not an empty text.""",
        files={"stock.csv": "name,number,colour\n" + "".join(f"{n},{k},{c}\n" for n, k, c in rows)},
        solution="""
python3 - <<'CODE'
import csv, sqlite3
db = sqlite3.connect("stock.db")
db.execute("create table stock(name text primary key, number integer, colour text)")
rows = [(r["name"], int(r["number"]), r["colour"] or None) for r in csv.DictReader(open("stock.csv"))]
db.executemany("insert into stock values (?, ?, ?)", rows)
db.commit()
CODE""",
        checks=[
            rows_are(
                "stock.db",
                "select name, number, colour from stock order by rowid",
                [[n, k, c or None] for n, k, c in rows],
            ),
            rows_are("stock.db", "select name, pk from pragma_table_info('stock') where pk > 0", [["name", 1]]),
        ],
        handed_in=["stock.db"],
        difficulty="easy",
    )


def running_balance(rng: Random) -> OwnTask:
    moves: list[tuple[object, ...]] = [(i, rng.choice(("a", "b", "c")), rng.randint(-60, 90)) for i in range(1, 61)]
    balance, below = dict[str, int](), list[str]()
    for number, account, amount in moves:
        name = str(account)
        balance[name] = balance.get(name, 0) + int(str(amount))
        if balance[name] < 0:
            below.append(f"{number} {name} {balance[name]}")
    return OwnTask(
        name="databases-running-balance",
        instruction="""
/work/bank.db has a table moves(id, account, amount), in the order of id; each account begins with 0. Write
/work/below.txt: a line `id account balance` for each move after which the balance of its account is below 0, in the
order of id. The file is empty if there is none.""",
        files={
            "bank.db": _script(
                "create table moves(id integer, account text, amount integer);", _inserts("moves", moves)
            )
        },
        solution="""
python3 - <<'CODE'
import sqlite3
balance, out = {}, open("below.txt", "w")
for number, account, amount in sqlite3.connect("bank.db").execute("select id, account, amount from moves order by id"):
    balance[account] = balance.get(account, 0) + amount
    if balance[account] < 0:
        print(number, account, balance[account], file=out)
CODE""",
        checks=[text_is("below.txt", "\n".join(below))],
        handed_in=["below.txt"],
    )


MAKERS: tuple[Maker, ...] = (best_paid, no_duplicates, new_column, imported_csv, running_balance)
