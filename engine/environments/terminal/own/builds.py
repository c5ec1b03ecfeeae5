"""Builds and configuration: versions, templates, merged settings, the order of things that need each other."""

import json
from random import Random

from engine.environments.terminal.own.own_task import Check, Maker, OwnTask, json_is, program_prints, text_is

_Layer = dict[str, dict[str, object]]
_PARTS = ("api", "base", "cli", "docs", "engine", "fonts", "grid", "http", "icons", "jobs")


def raised_version(rng: Random) -> OwnTask:
    major, minor, patch = rng.randint(1, 4), rng.randint(0, 9), rng.randint(1, 9)
    old, new = f"{major}.{minor}.{patch}", f"{major}.{minor + 1}.0"
    other = f"{major}{minor}.{patch}"
    files = {
        "package/version.py": f'VERSION = "{old}"\nOLDEST_CLIENT = "{other}"\n',
        "package.json": f'{{"name": "grid", "version": "{old}", "needs": {{"left": "{old}-beta"}}}}\n',
        "docs/install.txt": f"Fetch grid-{old}.tar.gz and unpack it.\n",
    }
    raised = {
        "package/version.py": f'VERSION = "{new}"\nOLDEST_CLIENT = "{other}"\n',
        "package.json": f'{{"name": "grid", "version": "{new}", "needs": {{"left": "{old}-beta"}}}}\n',
        "docs/install.txt": f"Fetch grid-{new}.tar.gz and unpack it.\n",
    }
    return OwnTask(
        name="builds-raised-version",
        instruction=f"""
The project in /work goes from version {old} to {new}. Change its own version wherever it stands: in package/version.py,
package.json and docs/install.txt. What the project needs of others, and its oldest client, stay as they are, and so
does everything else in these files.""",
        files=files,
        solution=f"""
sed -i 's/^VERSION = .*/VERSION = "{new}"/' package/version.py
sed -i 's/"version": "[^"]*"/"version": "{new}"/' package.json
sed -i 's/grid-[0-9.]*\\.tar/grid-{new}.tar/' docs/install.txt""",
        checks=[text_is(path, content) for path, content in raised.items()],
        handed_in=list(files),
        difficulty="easy",
    )


def merged_settings(rng: Random) -> OwnTask:
    base: _Layer = {
        "server": {"port": rng.randint(1024, 9999), "host": "0.0.0.0", "workers": 2},
        "log": {"level": "info"},
    }
    site: _Layer = {"server": {"workers": rng.randint(3, 16)}, "cache": {"size_mb": rng.randint(10, 500)}}
    own: _Layer = {"log": {"level": "debug"}, "server": {"host": "127.0.0.1"}}
    merged: _Layer = {}
    for layer in (base, site, own):
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)

    def ini(layer: _Layer) -> str:
        parts = [
            "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in held.items())])
            for name, held in layer.items()
        ]
        return "# settings\n" + "\n\n".join(parts) + "\n"

    return OwnTask(
        name="builds-merged-settings",
        instruction="""
/work/base.ini, /work/site.ini and /work/own.ini are settings, each stronger than the one before. Write
/work/merged.json: an object of sections, each an object of settings, in which the strongest file decides each single
setting. Values that are whole numbers become numbers, everything else stays text.""",
        files={"base.ini": ini(base), "site.ini": ini(site), "own.ini": ini(own)},
        solution="""
python3 - <<'CODE'
import configparser, json
parser = configparser.ConfigParser()
parser.read(["base.ini", "site.ini", "own.ini"])
def value(text):
    return int(text) if text.lstrip("-").isdigit() else text
found = {name: {k: value(v) for k, v in parser[name].items()} for name in parser.sections()}
json.dump(found, open("merged.json", "w"))
CODE""",
        checks=[json_is("merged.json", merged)],
        handed_in=["merged.json"],
        difficulty="easy",
    )


def build_order(rng: Random) -> OwnTask:
    parts = list(_PARTS)
    rng.shuffle(parts)
    needs = {part: sorted(rng.sample(parts[:i], min(i, rng.randint(0, 3)))) for i, part in enumerate(parts)}
    order, done = list[str](), set[str]()
    while len(order) < len(parts):
        ready = min(part for part in parts if part not in done and set(needs[part]) <= done)
        order.append(ready)
        done.add(ready)
    shuffled = sorted(needs)
    return OwnTask(
        name="builds-build-order",
        instruction="""
/work/needs.txt says for each part of a project which others it needs, as `part: other other`. Write /work/order.txt:
all parts, one a line, each behind everything that it needs. Where several parts may come next, the first in the
alphabet comes first.""",
        files={"needs.txt": "".join(f"{part}: {' '.join(needs[part])}".rstrip() + "\n" for part in shuffled)},
        solution="""
python3 - <<'CODE'
needs = {}
for line in open("needs.txt"):
    part, _, others = line.partition(":")
    needs[part] = set(others.split())
done = []
while len(done) < len(needs):
    done.append(min(part for part in needs if part not in done and needs[part] <= set(done)))
open("order.txt", "w").write("\\n".join(done) + "\\n")
CODE""",
        checks=[text_is("order.txt", "\n".join(order))],
        handed_in=["order.txt"],
    )


def filled_templates(rng: Random) -> OwnTask:
    def case() -> Check:
        values = {part: str(rng.randint(1, 99)) for part in rng.sample(_PARTS, 3)}
        names = list(values)
        first, second, third = names
        template = f"a={{{{{first}}}}} b={{{{ {second} }}}} {{{{{first}}}}}{{{{{third}}}}} {{single}}\n"
        filled = f"a={values[first]} b={values[second]} {values[first]}{values[third]} {{single}}"
        files = {"values.json": json.dumps(values), "page.tmpl": template}
        return program_prints(["python3", "-I", "/work/fill.py", "page.tmpl", "values.json"], filled, files=files)

    missing = {"values.json": "{}", "page.tmpl": "{{absent}}\n"}
    return OwnTask(
        name="builds-filled-templates",
        instruction="""
Write /work/fill.py for Python's standard library. `python3 fill.py TEMPLATE VALUES` prints the template, in which
each {{name}} is replaced by the value of that name in the JSON object in the file VALUES; there may be spaces
between the braces and the name. Single braces stay as they are. A name that has no value ends it with exit code 1
and nothing on standard output.""",
        solution=r"""
cat > fill.py <<'CODE'
import json
import re
import sys

values = json.load(open(sys.argv[2]))
text = open(sys.argv[1]).read()
names = re.findall(r"\{\{\s*(\w+)\s*\}\}", text)
if any(name not in values for name in names):
    sys.exit(1)
sys.stdout.write(re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: str(values[found[1]]), text))
CODE""",
        checks=[
            *(case() for _ in range(3)),
            program_prints(
                ["python3", "-I", "/work/fill.py", "page.tmpl", "values.json"], "", files=missing, exit_code=1
            ),
        ],
        handed_in=["fill.py"],
    )


def small_make(rng: Random) -> OwnTask:
    run = ["python3", "-I", "/work/build.py"]
    word, number = rng.choice(_PARTS), rng.randint(10, 99)
    plan = "all: page\npage: body head\n\tcat head body > page\n"
    plan += f"head:\n\techo {word} > head\nbody:\n\techo {number} > body\n"
    circle = "a: b\n\techo a\nb: a\n\techo b\n"
    failing = "all: first second\nfirst:\n\tfalse\nsecond:\n\techo x > second\n"
    return OwnTask(
        name="builds-small-make",
        instruction="""
Write /work/build.py for Python's standard library, a very small make. `python3 build.py TARGET` reads the file
`Plan` of the current folder. Lines `target: need need` begin a target, and lines below it that begin with a tab are
its commands. Targets are built after all that they need, in the order in which the needs stand there, and each at
most once; commands are run by /bin/sh. A target that needs itself in the end, or that is not in the plan, ends it
with exit code 2 before any command is run; a command that fails ends it at once with exit code 1.""",
        solution="""
cat > build.py <<'CODE'
import subprocess
import sys

needs, commands = {}, {}
for line in open("Plan"):
    if line.startswith("\\t"):
        commands[target].append(line.strip())
    elif line.strip():
        target, _, others = line.partition(":")
        target = target.strip()
        needs[target], commands[target] = others.split(), []

order = []

def visit(target, above):
    if target in above or target not in needs:
        sys.exit(2)
    if target in order:
        return
    for need in needs[target]:
        visit(need, above + [target])
    order.append(target)

visit(sys.argv[1], [])
for target in order:
    for command in commands[target]:
        if subprocess.run(["/bin/sh", "-c", command]).returncode != 0:
            sys.exit(1)
CODE""",
        checks=[
            _leaves([*run, "all"], plan, {"page": f"{word}\n{number}"}, 0),
            _leaves([*run, "body"], plan, {"body": str(number), "head": None}, 0),
            _leaves([*run, "a"], circle, {}, 2),
            _leaves([*run, "none"], plan, {"head": None}, 2),
            _leaves([*run, "all"], failing, {"second": None}, 1),
        ],
        handed_in=["build.py"],
        difficulty="hard",
    )


def _leaves(argv: list[str], plan: str, left: dict[str, str | None], exit_code: int) -> Check:
    given = {"argv": argv, "stdin": "", "files": {"Plan": plan}, "left": left, "exit_code": exit_code}
    return {"kind": "program", **given}


MAKERS: tuple[Maker, ...] = (raised_version, merged_settings, build_order, filled_templates, small_make)
