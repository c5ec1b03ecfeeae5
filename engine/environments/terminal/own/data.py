"""Data: CSV and JSON that are joined, cleaned, summed and turned into each other."""

import json
from random import Random
from typing import Any

from engine.environments.terminal.own.own_task import Maker, OwnTask, json_is, text_is

_CITIES = ("Aarhus", "Bergen", "Cork", "Delft", "Evora", "Fribourg", "Gdansk", "Halle")
_GOODS = ("bolt", "cable", "drill", "fuse", "hinge", "lamp", "nail", "valve")


def joined_orders(rng: Random) -> OwnTask:
    customers = {number: (f"c{number:02}", rng.choice(_CITIES)) for number in range(1, 16)}
    orders = [(rng.randint(1, 18), rng.randint(1, 40)) for _ in range(90)]
    totals = dict.fromkeys(_CITIES, 0)
    for customer, amount in orders:
        if customer in customers:
            totals[customers[customer][1]] += amount
    return OwnTask(
        name="data-joined-orders",
        instruction="""
/work/customers.csv (id,name,city) and /work/orders.csv (customer_id,amount) belong together. Write
/work/totals.json: an object with the sum of the amounts by city. Orders of customers that are not listed do not
count; cities without any order are left out.""",
        files={
            "customers.csv": "id,name,city\n" + "".join(f"{i},{n},{c}\n" for i, (n, c) in customers.items()),
            "orders.csv": "customer_id,amount\n" + "".join(f"{c},{a}\n" for c, a in orders),
        },
        solution="""
python3 - <<'CODE'
import csv, json
city = {row["id"]: row["city"] for row in csv.DictReader(open("customers.csv"))}
totals = {}
for row in csv.DictReader(open("orders.csv")):
    if row["customer_id"] in city:
        name = city[row["customer_id"]]
        totals[name] = totals.get(name, 0) + int(row["amount"])
json.dump(totals, open("totals.json", "w"))
CODE""",
        checks=[json_is("totals.json", {city: total for city, total in totals.items() if total})],
        handed_in=["totals.json"],
        difficulty="easy",
    )


def quoted_fields(rng: Random) -> OwnTask:
    rows = [
        {
            "id": number,
            "title": f'{rng.choice(_GOODS)}, {rng.choice(("5", "8", "12"))}" {rng.choice(_GOODS)}',
            "price": rng.randint(100, 9999) / 100,
            "in_stock": rng.random() < 0.6,
        }
        for number in range(1, 26)
    ]
    quoted = [
        f'{row["id"]},"{str(row["title"]).replace(chr(34), chr(34) * 2)}",{row["price"]:.2f},'
        f"{'yes' if row['in_stock'] else 'no'}"
        for row in rows
    ]
    return OwnTask(
        name="data-quoted-fields",
        instruction="""
Write /work/goods.json from /work/goods.csv: a list of objects with `id` (a whole number), `title`, `price` (a
number) and `in_stock` (true or false). Titles may hold commas and quotation marks.""",
        files={"goods.csv": "id,title,price,in_stock\n" + "\n".join(quoted) + "\n"},
        solution="""
python3 - <<'CODE'
import csv, json
rows = [{"id": int(r["id"]), "title": r["title"], "price": float(r["price"]), "in_stock": r["in_stock"] == "yes"}
        for r in csv.DictReader(open("goods.csv", newline=""))]
json.dump(rows, open("goods.json", "w"))
CODE""",
        checks=[json_is("goods.json", rows)],
        handed_in=["goods.json"],
        difficulty="easy",
    )


def _tree(rng: Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_GOODS, 3)
    return {name: _tree(rng, depth - 1) if depth and rng.random() < 0.6 else rng.randint(0, 99) for name in names}


def _flat(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    inside = (_flat(held, f"{path}.{name}" if path else name) for name, held in value.items())
    return {name: held for part in inside for name, held in part.items()}


def flattened_settings(rng: Random) -> OwnTask:
    tree = _tree(rng, 3)
    return OwnTask(
        name="data-flattened-settings",
        instruction="""
/work/settings.json holds objects inside objects. Write /work/flat.json: one object with an entry for each number, whose
name is the path to it with dots between the names, as in {"lamp.fuse.nail": 7}.""",
        files={"settings.json": json.dumps(tree, indent=1)},
        solution="""
python3 - <<'CODE'
import json
def flat(value, path=""):
    if not isinstance(value, dict):
        return {path: value}
    found = {}
    for name, held in value.items():
        found.update(flat(held, path + "." + name if path else name))
    return found
json.dump(flat(json.load(open("settings.json"))), open("flat.json", "w"))
CODE""",
        checks=[json_is("flat.json", _flat(tree, ""))],
        handed_in=["flat.json"],
    )


def cleaned_readings(rng: Random) -> OwnTask:
    lines, good = list[str](), dict[str, list[float]]()
    for number in range(150):
        sensor, value = f"s{rng.randint(1, 6)}", round(rng.uniform(-20, 45), 1)
        broken = rng.choice(("", "", "", "n/a", "--", "999.0", f"{value}C"))
        lines.append(f"2031-03-{1 + number % 28:02},{sensor},{broken or value}")
        if not broken:
            good.setdefault(sensor, []).append(value)
    expected = {
        sensor: {"readings": len(values), "mean": round(sum(values) / len(values), 3)}
        for sensor, values in good.items()
    }
    return OwnTask(
        name="data-cleaned-readings",
        instruction="""
/work/readings.csv (no head line) has date, sensor and temperature. Some temperatures are broken: they are no plain
number, or are 999.0, which a sensor says when it fails. Write /work/sensors.json: by sensor the number of good
`readings` and their `mean`, rounded to three digits. Sensors without a good reading are left out.""",
        files={"readings.csv": "\n".join(lines) + "\n"},
        solution="""
python3 - <<'CODE'
import csv, json
good = {}
for _, sensor, text in csv.reader(open("readings.csv")):
    try:
        value = float(text)
    except ValueError:
        continue
    if value != 999.0:
        good.setdefault(sensor, []).append(value)
found = {s: {"readings": len(v), "mean": round(sum(v) / len(v), 3)} for s, v in good.items()}
json.dump(found, open("sensors.json", "w"))
CODE""",
        checks=[json_is("sensors.json", expected)],
        handed_in=["sensors.json"],
    )


def pivoted_sales(rng: Random) -> OwnTask:
    months, goods = ["01", "02", "03", "04"], sorted(rng.sample(_GOODS, 4))
    sales = [
        (f"2030-{rng.choice(months)}-{rng.randint(1, 28):02}", rng.choice(goods), rng.randint(1, 30)) for _ in range(80)
    ]
    table = {
        good: {month: sum(n for d, g, n in sales if g == good and d[5:7] == month) for month in months}
        for good in goods
    }
    lines = ["product," + ",".join(months)]
    lines += [f"{good}," + ",".join(str(table[good][month]) for month in months) for good in goods]
    return OwnTask(
        name="data-pivoted-sales",
        instruction="""
/work/sales.csv (date,product,number) lists sales of the months 01 to 04 of 2030. Write /work/pivot.csv: the head line
`product,01,02,03,04`, then a line for each product in alphabetical order with what was sold of it in each month, 0
included.""",
        files={"sales.csv": "date,product,number\n" + "".join(f"{d},{g},{n}\n" for d, g, n in sales)},
        solution="""
python3 - <<'CODE'
import csv
months, table = ["01", "02", "03", "04"], {}
for row in csv.DictReader(open("sales.csv")):
    of = table.setdefault(row["product"], dict.fromkeys(months, 0))
    of[row["date"][5:7]] += int(row["number"])
with open("pivot.csv", "w") as out:
    print("product," + ",".join(months), file=out)
    for good in sorted(table):
        print(good + "," + ",".join(str(table[good][m]) for m in months), file=out)
CODE""",
        checks=[text_is("pivot.csv", "\n".join(_with_sales(lines, sales, goods)))],
        handed_in=["pivot.csv"],
        difficulty="hard",
    )


def _with_sales(lines: list[str], sales: list[tuple[str, str, int]], goods: list[str]) -> list[str]:
    """The head, and the lines of those goods of which anything was sold."""
    sold = {good for _, good, _ in sales}
    return [lines[0], *(line for good, line in zip(goods, lines[1:], strict=True) if good in sold)]


MAKERS: tuple[Maker, ...] = (joined_orders, quoted_fields, flattened_settings, cleaned_readings, pivoted_sales)
