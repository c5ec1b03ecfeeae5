"""Python programs with a fault in them, which the policy finds and mends; the tests run them on inputs of their own."""

from random import Random

from engine.environments.terminal.own.own_task import Maker, OwnTask, program_prints

_RUN = ("python3", "-I")


def _fixed(path: str, broken: str, right: str) -> str:
    return f"""
python3 - <<'CODE'
text = open({path!r}).read()
assert {broken!r} in text
open({path!r}, "w").write(text.replace({broken!r}, {right!r}))
CODE"""


def moving_mean(rng: Random) -> OwnTask:
    code = '''\
"""Reads whole numbers, one a line, and prints the mean of each window of the size that the first line names."""
import sys


def means(numbers, size):
    return [sum(numbers[i : i + size]) / size for i in range(len(numbers) - size)]


def main():
    size, *numbers = map(int, sys.stdin.read().split())
    for mean in means(numbers, size):
        print(f"{mean:.2f}")


main()
'''
    inputs = [[rng.randint(2, 4), *(rng.randint(0, 50) for _ in range(rng.randint(5, 9)))] for _ in range(4)]
    inputs.append([3, 1, 2, 3])
    checks = []
    for size, *numbers in inputs:
        means = [sum(numbers[i : i + size]) / size for i in range(len(numbers) - size + 1)]
        printed = "\n".join(f"{mean:.2f}" for mean in means)
        checks.append(
            program_prints([*_RUN, "/work/means.py"], printed, stdin="\n".join(map(str, (size, *numbers))) + "\n")
        )
    return OwnTask(
        name="debugging-moving-mean",
        instruction="""
/work/means.py prints moving means, and forgets the last window: for the lines 3, 1, 2, 3 it prints nothing and
should print 2.00. Mend it.""",
        files={"means.py": code},
        solution=_fixed("means.py", "range(len(numbers) - size)", "range(len(numbers) - size + 1)"),
        checks=checks,
        handed_in=["means.py"],
        difficulty="easy",
    )


def shared_baskets(rng: Random) -> OwnTask:
    code = '''\
"""Reads lines `customer thing`, and prints what each customer has in the basket, customers in alphabetical order."""
import sys


class Basket:
    def __init__(self, things=[]):
        self.things = things

    def add(self, thing):
        self.things.append(thing)


def main():
    baskets = {}
    for line in sys.stdin:
        customer, thing = line.split()
        if customer not in baskets:
            baskets[customer] = Basket()
        baskets[customer].add(thing)
    for customer in sorted(baskets):
        print(customer, ",".join(sorted(baskets[customer].things)))


main()
'''
    checks = []
    for _ in range(3):
        lines = [(rng.choice("abcd"), rng.choice(("ink", "jar", "key", "lid"))) for _ in range(rng.randint(4, 9))]
        baskets: dict[str, list[str]] = {}
        for customer, thing in lines:
            baskets.setdefault(customer, []).append(thing)
        printed = "\n".join(f"{customer} {','.join(sorted(baskets[customer]))}" for customer in sorted(baskets))
        stdin = "".join(f"{customer} {thing}\n" for customer, thing in lines)
        checks.append(program_prints([*_RUN, "/work/baskets.py"], printed, stdin=stdin))
    checks.append(program_prints([*_RUN, "/work/baskets.py"], "a ink\nb key", stdin="a ink\nb key\n"))
    return OwnTask(
        name="debugging-shared-baskets",
        instruction="""
/work/baskets.py reads lines `customer thing` and prints the basket of each customer. As soon as there are two
customers, each of them has the things of both. Mend it.""",
        files={"baskets.py": code},
        solution=_fixed(
            "baskets.py", "things=[]):\n        self.things = things", "things=()):\n        self.things = list(things)"
        ),
        checks=checks,
        handed_in=["baskets.py"],
    )


def balanced_brackets(rng: Random) -> OwnTask:
    code = '''\
"""Prints, for each line, whether its brackets are balanced: yes or no.  Other characters do not count."""
import sys

PAIRS = {")": "(", "]": "[", "}": "{"}


def balanced(text):
    open_brackets = []
    for character in text:
        if character in PAIRS.values():
            open_brackets.append(character)
        elif character in PAIRS:
            if open_brackets.pop() != PAIRS[character]:
                return False
    return True


for line in sys.stdin:
    print("yes" if balanced(line) else "no")
'''
    cases = {"(a[b]{c})": True, ")(": False, "((": False, "": True, "[(])": False, "x": True, "}": False}
    for _ in range(5):
        inner = "".join(rng.choice(("()", "[]", "{x}")) for _ in range(rng.randint(1, 4)))
        cases |= {f"({inner})": True, f"({inner}": False, f"{inner}]": False}
    lines = list(cases)
    rng.shuffle(lines)
    printed = "\n".join("yes" if cases[line] else "no" for line in lines)
    return OwnTask(
        name="debugging-balanced-brackets",
        instruction="""
/work/brackets.py says for each line of its input whether its brackets are balanced. It crashes on a line that begins
with a closing bracket, and calls `((` balanced. Mend it.""",
        files={"brackets.py": code},
        solution=_fixed("brackets.py", "if open_brackets.pop() !=", "if not open_brackets or open_brackets.pop() !=")
        + _fixed("brackets.py", "    return True\n", "    return not open_brackets\n"),
        checks=[program_prints([*_RUN, "/work/brackets.py"], printed, stdin="\n".join(lines) + "\n")],
        handed_in=["brackets.py"],
    )


def slow_ways(rng: Random) -> OwnTask:
    code = '''\
"""Prints in how many ways one climbs so many stairs with steps of 1, 2 or 3, modulo 1000007."""
import sys


def ways(stairs):
    if stairs < 0:
        return 0
    if stairs == 0:
        return 1
    return ways(stairs - 1) + ways(stairs - 2) + ways(stairs - 3)


for line in sys.stdin:
    print(ways(int(line)) % 1000007)
'''
    numbers = [0, 1, 2, 3, 10, *(rng.randint(40, 3000) for _ in range(6)), 20000]
    counts = [1, 1, 2]
    while len(counts) <= max(numbers):
        counts.append((counts[-1] + counts[-2] + counts[-3]) % 1000007)
    return OwnTask(
        name="debugging-slow-ways",
        instruction="""
/work/stairs.py is right for small numbers and never ends for large ones. Make it fast: 20000 stairs must take less
than a second.""",
        files={"stairs.py": code},
        solution="""
cat > stairs.py <<'CODE'
import sys

counts = [1, 1, 2]
for line in sys.stdin:
    stairs = int(line)
    while len(counts) <= stairs:
        counts.append((counts[-1] + counts[-2] + counts[-3]) % 1000007)
    print(counts[stairs] % 1000007)
CODE""",
        checks=[
            program_prints(
                [*_RUN, "/work/stairs.py"],
                "\n".join(str(counts[number]) for number in numbers),
                stdin="".join(f"{number}\n" for number in numbers),
            )
        ],
        handed_in=["stairs.py"],
        difficulty="hard",
    )


def swallowed_errors(rng: Random) -> OwnTask:
    code = '''\
"""Adds the numbers of a file, one a line; a line that is no number is reported on standard error.

Exit code 0 if every line was a number, 2 if some were not, 3 if the file is not there.
"""
import sys


def main(path):
    total = 0
    try:
        for line in open(path):
            total += int(line)
    except Exception:
        pass
    print(total)


main(sys.argv[1])
'''
    numbers = [rng.randint(-50, 50) for _ in range(8)]
    broken = [str(number) for number in numbers]
    broken[3] = rng.choice(("seven", "1.5", "--"))
    run = [*_RUN, "/work/add.py"]
    rest = sum(numbers) - numbers[3]
    return OwnTask(
        name="debugging-swallowed-errors",
        instruction="""
/work/add.py hides every error, and does not do what the text at its head says. Make it so: a line that is no whole
number is left out of the sum and reported on standard error, the sum of the others is printed, and the exit codes
are right. Of a file that is not there nothing is printed on standard output.""",
        files={"add.py": code},
        solution="""
cat > add.py <<'CODE'
import sys

total, code = 0, 0
try:
    file = open(sys.argv[1])
except FileNotFoundError:
    sys.exit(3)
for line in file:
    try:
        total += int(line)
    except ValueError:
        print("no number:", line.strip(), file=sys.stderr)
        code = 2
print(total)
sys.exit(code)
CODE""",
        checks=[
            program_prints([*run, "in"], str(sum(numbers)), files={"in": "".join(f"{n}\n" for n in numbers)}),
            program_prints([*run, "in"], str(rest), files={"in": "\n".join(broken) + "\n"}, exit_code=2),
            program_prints([*run, "none"], "", exit_code=3),
        ],
        handed_in=["add.py"],
    )


MAKERS: tuple[Maker, ...] = (moving_mean, shared_baskets, balanced_brackets, slow_ways, swallowed_errors)
