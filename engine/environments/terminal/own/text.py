"""Text processing: counting, extracting, masking, ordering."""

import re
from collections import Counter
from random import Random

from engine.environments.terminal.own.own_task import Maker, OwnTask, text_is

_WORDS = [
    "amber", "basil", "cedar", "delta", "ember", "fjord", "gravel", "harbor", "indigo", "juniper", "kelp",
    "lantern", "meadow", "nickel", "olive", "pepper",
]  # fmt: skip
_NAMES = [
    "ada", "brook", "cleo", "dario", "elif", "femi", "greta", "hugo", "ines", "jonas", "kaya", "liam", "mina",
    "noor", "omar", "petra",
]  # fmt: skip
_SITES = ("example.org", "example.com", "mail.example.net")


def word_counts(rng: Random) -> OwnTask:
    words = [rng.choice(_WORDS) for _ in range(400)]
    number = rng.randint(4, 7)
    lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
    shown = [line.capitalize() + rng.choice(".,!") for line in lines]
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[:number]
    return OwnTask(
        name="text-word-counts",
        instruction=f"""
/work/story.txt holds a text. Write the {number} most frequent words to /work/counts.txt, one a line as `word count`,
the most frequent first; words that are equally frequent in alphabetical order. Case does not count, and neither do
punctuation marks.""",
        files={"story.txt": "\n".join(shown) + "\n"},
        solution=f"""
grep -o '[A-Za-z]*' story.txt | tr A-Z a-z | sort | uniq -c | sort -k1,1nr -k2,2 | head -n {number} |
  sed 's/^ *\\([0-9]*\\) \\(.*\\)$/\\2 \\1/' > counts.txt""",
        checks=[text_is("counts.txt", "\n".join(f"{word} {count}" for word, count in ranked))],
        handed_in=["counts.txt"],
        difficulty="easy",
    )


def failed_requests(rng: Random) -> OwnTask:
    lines, failed = list[str](), Counter[str]()
    for number in range(220):
        path = f"/{rng.choice(_WORDS)}/{rng.randint(1, 9)}"
        status = rng.choice((200, 200, 200, 204, 301, 404, 500, 502, 503))
        lines.append(f"10.0.{rng.randint(0, 9)}.{number} GET {path} {status} {rng.randint(2, 900)}ms")
        failed[path] += status >= 500
    expected = sorted(((path, count) for path, count in failed.items() if count), key=lambda item: (-item[1], item[0]))
    return OwnTask(
        name="text-failed-requests",
        instruction="""
/work/access.log has a line for each request: address, method, path, status, time. Write to /work/failed.txt how often
each path failed with a status of 500 or more, as `count path`: the most failures first, equal counts by path in
byte order. Leave out paths that never failed so.""",
        files={"access.log": "\n".join(lines) + "\n"},
        solution="""
python3 - <<'CODE'
from collections import Counter
failed = Counter()
for line in open("access.log"):
    _, _, path, status, _ = line.split()
    if int(status) >= 500:
        failed[path] += 1
with open("failed.txt", "w") as out:
    for path, count in sorted(failed.items(), key=lambda item: (-item[1], item[0])):
        print(count, path, file=out)
CODE""",
        checks=[text_is("failed.txt", "\n".join(f"{count} {path}" for path, count in expected))],
        handed_in=["failed.txt"],
        difficulty="easy",
    )


def masked_addresses(rng: Random) -> OwnTask:
    lines = list[str]()
    for _ in range(60):
        name, site = rng.choice(_NAMES), rng.choice(_SITES)
        mail = f"{name}.{rng.choice(_NAMES)}{rng.randint(1, 99)}@{site}"
        lines.append(rng.choice((f"From <{mail}>", f"{name}: please write to {mail}, not @{site}", f"see {name}@work")))
    text = "\n".join(lines) + "\n"
    address = r"[a-z]+\.[a-z]+[0-9]+@([a-z]+(?:\.[a-z]+)+)"
    return OwnTask(
        name="text-masked-addresses",
        instruction="""
/work/mails.txt mentions mail addresses such as mina.omar7@example.org: a name with a dot and digits at its end, an
@, and a site with at least one dot. Write /work/masked.txt, the same text in which each such address has its name
replaced by `***`, as in ***@example.org. Nothing else may change; `greta@work` is no such address.""",
        files={"mails.txt": text},
        solution=r"""
python3 - <<'CODE'
import re
text = open("mails.txt").read()
open("masked.txt", "w").write(re.sub(r"[a-z]+\.[a-z]+[0-9]+@([a-z]+(?:\.[a-z]+)+)", r"***@\1", text))
CODE""",
        checks=[text_is("masked.txt", re.sub(address, r"***@\1", text))],
        handed_in=["masked.txt"],
    )


def first_occurrences(rng: Random) -> OwnTask:
    hosts = [f"{rng.choice(_WORDS)}-{rng.randint(1, 12)}" for _ in range(180)]
    lines = [host.upper() if rng.random() < 0.2 else host for host in hosts]
    lines = [f"  {line} " if rng.random() < 0.2 else line for line in lines]
    kept = list(dict.fromkeys(line.strip().lower() for line in lines))
    return OwnTask(
        name="text-first-occurrences",
        instruction="""
/work/hosts.txt has a host name on each line, many of them several times, some in capitals, some with spaces around
them. Write /work/unique.txt: each host once, in small letters without spaces, in the order of first occurrence.""",
        files={"hosts.txt": "\n".join(lines) + "\n"},
        solution="""
python3 -c '
seen = dict.fromkeys(line.strip().lower() for line in open("hosts.txt"))
open("unique.txt", "w").write("".join(host + chr(10) for host in seen))'""",
        checks=[text_is("unique.txt", "\n".join(kept))],
        handed_in=["unique.txt"],
        difficulty="easy",
    )


def table_of_contents(rng: Random) -> OwnTask:
    lines, entries, fenced = list[str](), list[str](), False
    for _ in range(rng.randint(24, 32)):
        title = " ".join(rng.sample(_WORDS, 2)).title()
        depth = rng.randint(1, 3)
        if rng.random() < 0.2:
            lines.append("```")
            fenced = not fenced
        lines += [f"{'#' * depth} {title}", "", f"Some words about {title.lower()}.", ""]
        if not fenced:
            anchor = title.lower().replace(" ", "-")
            entries.append(f"{'  ' * (depth - 1)}- [{title}](#{anchor})")
    lines += ["```"] if fenced else []
    return OwnTask(
        name="text-table-of-contents",
        instruction="""
Write /work/toc.md, a table of contents of /work/guide.md. Each heading (one to three # at the beginning of the line)
becomes `- [Title](#title)`, where the anchor is the title in small letters with a hyphen for each space, indented by
two spaces for each level below the first. What stands between lines of ``` is code and has no headings.""",
        files={"guide.md": "\n".join(lines) + "\n"},
        solution="""
python3 - <<'CODE'
fenced, out = False, []
for line in open("guide.md"):
    if line.startswith("```"):
        fenced = not fenced
    elif line.startswith("#") and not fenced:
        marks, title = line.split(" ", 1)
        title = title.strip()
        out.append("  " * (len(marks) - 1) + "- [%s](#%s)" % (title, title.lower().replace(" ", "-")))
open("toc.md", "w").write("\\n".join(out) + "\\n")
CODE""",
        checks=[text_is("toc.md", "\n".join(entries))],
        handed_in=["toc.md"],
        difficulty="hard",
    )


MAKERS: tuple[Maker, ...] = (word_counts, failed_requests, masked_addresses, first_occurrences, table_of_contents)
