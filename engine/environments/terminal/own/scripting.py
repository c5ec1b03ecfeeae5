"""Shell scripts that the policy writes; the tests run them on folders of their own."""

from random import Random

from engine.environments.terminal.own.own_task import Maker, OwnTask, is_executable, program_leaves, program_prints

_STEMS = ("alpha", "beta", "gamma", "omega", "sigma", "theta")


def _script(text: str, name: str) -> str:
    return f"cat > {name} <<'CODE'\n#!/bin/sh\n{text.strip()}\nCODE\nchmod +x {name}"


def suffixes(rng: Random) -> OwnTask:
    old, new = rng.choice((("txt", "md"), ("htm", "html"), ("jpeg", "jpg")))
    stems = rng.sample(_STEMS, 4)
    files = {
        f"{stems[0]}.{old}": "0",
        f"{stems[1]} two.{old}": "1",
        f"{stems[2]}.{old}.bak": "2",
        f"{stems[3]}.csv": "3",
    }
    left = {
        f"{stems[0]}.{new}": "0", f"{stems[0]}.{old}": None, f"{stems[1]} two.{new}": "1",
        f"{stems[1]} two.{old}": None, f"{stems[2]}.{old}.bak": "2", f"{stems[3]}.csv": "3",
    }  # fmt: skip
    return OwnTask(
        name="scripting-suffixes",
        instruction=f"""
Write an executable script /work/rename.sh for /bin/sh that renames every file of the current folder whose name ends in
.{old} so that it ends in .{new}. Names may hold spaces. It must do nothing, and end with exit code 0, where there is
no such file.""",
        solution=_script(
            f'for file in *.{old}; do\n  [ -e "$file" ] || continue\n  mv -- "$file" "${{file%.{old}}}.{new}"\ndone',
            "rename.sh",
        ),
        checks=[
            is_executable("rename.sh"),
            program_leaves(["/work/rename.sh"], files, left),
            program_leaves(["/work/rename.sh"], {"other": "x"}, {"other": "x", f"*.{new}": None}),
        ],
        handed_in=["rename.sh"],
        difficulty="easy",
    )


def rotated_logs(rng: Random) -> OwnTask:
    kept = rng.randint(3, 4)
    files = {"app.log": "now\n", **{f"app.log.{n}": f"old {n}\n" for n in range(1, kept + 1)}}
    left: dict[str, str | None] = {"app.log": "", "app.log.1": "now"}
    left |= {f"app.log.{n + 1}": f"old {n}" for n in range(1, kept)}
    left[f"app.log.{kept + 1}"] = None
    return OwnTask(
        name="scripting-rotated-logs",
        instruction=f"""
Write an executable script /work/rotate.sh for /bin/sh. Called with the name of a log in the current folder, as in
`/work/rotate.sh app.log`, it moves app.log.1 to app.log.2 and so on, app.log to app.log.1, and leaves an empty app.log.
At most {kept} old logs are kept: what would become app.log.{kept + 1} is removed. Old logs that are not there are no
error.""",
        solution=_script(
            f"""
n={kept}
rm -f "$1.$n"
while [ "$n" -gt 1 ]; do
  m=$((n - 1))
  if [ -e "$1.$m" ]; then mv "$1.$m" "$1.$n"; fi
  n=$m
done
mv "$1" "$1.1"
: > "$1" """,
            "rotate.sh",
        ),
        checks=[
            program_leaves(["/work/rotate.sh", "app.log"], files, left),
            program_leaves(
                ["/work/rotate.sh", "new.log"],
                {"new.log": "first"},
                {"new.log": "", "new.log.1": "first", "new.log.2": None},
            ),
        ],
        handed_in=["rotate.sh"],
        difficulty="hard",
    )


def named_options(rng: Random) -> OwnTask:
    greeting = rng.choice(("Welcome", "Hello", "Good day"))
    usage = program_prints(["/work/greet.sh", "-x"], "", exit_code=2)
    return OwnTask(
        name="scripting-named-options",
        instruction=f"""
Write an executable script /work/greet.sh for /bin/sh. `greet.sh -n NAME` prints `{greeting}, NAME!`; `-c COUNT`
prints the line so many times (once without it); `-u` prints it in capitals. The options may come in any order. An
option that is not known, or a missing name, ends it with exit code 2 and nothing on standard output.""",
        solution=_script(
            f"""
name= count=1 upper=
while getopts n:c:u option 2>/dev/null; do
  case $option in
    n) name=$OPTARG ;;
    c) count=$OPTARG ;;
    u) upper=1 ;;
    *) exit 2 ;;
  esac
done
[ -n "$name" ] || exit 2
line="{greeting}, $name!"
if [ -n "$upper" ]; then line=$(printf %s "$line" | tr a-z A-Z); fi
while [ "$count" -gt 0 ]; do
  printf '%s\\n' "$line"
  count=$((count - 1))
done""",
            "greet.sh",
        ),
        checks=[
            program_prints(["/work/greet.sh", "-n", "Ada"], f"{greeting}, Ada!"),
            program_prints(["/work/greet.sh", "-c", "3", "-n", "Ben Lee"], "\n".join([f"{greeting}, Ben Lee!"] * 3)),
            program_prints(
                ["/work/greet.sh", "-u", "-n", "cleo", "-c", "2"], "\n".join([f"{greeting}, CLEO!".upper()] * 2)
            ),
            usage,
            program_prints(["/work/greet.sh", "-c", "2"], "", exit_code=2),
        ],
        handed_in=["greet.sh"],
    )


def line_statistics(rng: Random) -> OwnTask:
    def case(number: int) -> tuple[str, str]:
        lines = [" ".join("word" for _ in range(rng.randint(0, 6))) for _ in range(number)]
        empty, words = sum(not line for line in lines), sum(len(line.split()) for line in lines)
        return "".join(f"{line}\n" for line in lines), f"lines={number}\nempty={empty}\nwords={words}"

    cases = [case(number) for number in (0, 1, rng.randint(5, 20), rng.randint(21, 60))]
    return OwnTask(
        name="scripting-line-statistics",
        instruction="""
Write an executable script /work/stats.sh for /bin/sh that reads standard input and prints three lines: `lines=N`,
the number of its lines, `empty=N`, how many of them are empty, and `words=N`, the number of its words. No input is
no error.""",
        solution=_script(
            """
lines=0 empty=0 words=0
set -f
while IFS= read -r line || [ -n "$line" ]; do
  lines=$((lines + 1))
  [ -n "$line" ] || empty=$((empty + 1))
  set -- $line
  words=$((words + $#))
done
printf 'lines=%d\\nempty=%d\\nwords=%d\\n' "$lines" "$empty" "$words" """,
            "stats.sh",
        ),
        checks=[program_prints(["/work/stats.sh"], printed, stdin=stdin) for stdin, printed in cases],
        handed_in=["stats.sh"],
        difficulty="easy",
    )


def careful_backup(rng: Random) -> OwnTask:
    name = rng.choice(_STEMS)
    files = {f"{name}/a.txt": "a\n", f"{name}/deep/b.txt": "b\n", "other/c.txt": "c\n"}
    left = {"backup/a.txt": "a", "backup/deep/b.txt": "b", f"{name}/a.txt": "a", "backup/c.txt": None}
    again = {**files, "backup/kept.txt": "kept\n"}
    return OwnTask(
        name="scripting-careful-backup",
        instruction="""
Write an executable script /work/backup.sh for /bin/sh. `backup.sh FROM TO` copies all that is in the folder FROM,
folders included, into the folder TO, which it makes. If TO is there already, it changes nothing and ends with exit
code 3; if FROM is no folder, with exit code 4, and no TO is made.""",
        solution=_script(
            '[ -d "$1" ] || exit 4\n[ ! -e "$2" ] || exit 3\nmkdir -p "$2"\ncp -R "$1/." "$2/"', "backup.sh"
        ),
        checks=[
            program_leaves(["/work/backup.sh", name, "backup"], files, left),
            {
                **program_leaves(
                    ["/work/backup.sh", name, "backup"], again, {"backup/kept.txt": "kept", "backup/a.txt": None}
                ),
                "exit_code": 3,
            },
            {**program_leaves(["/work/backup.sh", "none", "new"], files, {"new": None}), "exit_code": 4},
        ],
        handed_in=["backup.sh"],
    )


MAKERS: tuple[Maker, ...] = (suffixes, rotated_logs, named_options, line_statistics, careful_backup)
