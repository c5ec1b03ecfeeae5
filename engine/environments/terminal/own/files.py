"""Files: trees, archives, checksums and permissions."""

import gzip
import hashlib
import io
import tarfile
from random import Random

from engine.environments.terminal.own.own_task import (
    Maker,
    OwnTask,
    archive_holds,
    is_absent,
    is_executable,
    json_is,
    text_is,
)

_NAMES = ("atlas", "birch", "copper", "dune", "echo", "flint", "grove", "heron", "iris", "jade")


def _letters(rng: Random, number: int) -> str:
    return "".join(rng.choice("abcdefghij \n") for _ in range(number))


def largest_files(rng: Random) -> OwnTask:
    sizes = rng.sample(range(40, 4000), 18)
    files = {
        f"tree/{rng.choice(_NAMES)}/{rng.choice(_NAMES)}{i}.dat": _letters(rng, size) for i, size in enumerate(sizes)
    }
    number = rng.randint(4, 6)
    ranked = sorted(files, key=lambda path: -len(files[path]))[:number]
    expected = "\n".join(f"{len(files[path])} {path.removeprefix('tree/')}" for path in ranked)
    return OwnTask(
        name="files-largest-files",
        instruction=f"""
Write the {number} largest files below /work/tree to /work/largest.txt, one a line as `bytes path`, the largest
first. Paths are relative to /work/tree, without `./`.""",
        files=files,
        solution=f"""
cd tree
find . -type f | while IFS= read -r file; do
  printf '%s %s\\n' "$(wc -c < "$file")" "${{file#./}}"
done | sort -nr | head -n {number} > ../largest.txt""",
        checks=[text_is("largest.txt", expected)],
        handed_in=["largest.txt"],
        difficulty="easy",
    )


def sorted_by_kind(rng: Random) -> OwnTask:
    kinds = {"txt": "text", "csv": "tables", "log": "logs"}
    files = {f"inbox/{name}.{rng.choice(list(kinds))}": f"{name} {rng.randint(0, 999)}\n" for name in _NAMES}
    files["inbox/README"] = "stays\n"
    checks = [text_is("inbox/README", "stays")]
    for path, content in files.items():
        if path != "inbox/README":
            name = path.removeprefix("inbox/")
            checks += [text_is(f"sorted/{kinds[name.rsplit('.', 1)[1]]}/{name}", content), is_absent(path)]
    return OwnTask(
        name="files-sorted-by-kind",
        instruction="""
Move the files of /work/inbox: those that end in .txt to /work/sorted/text, those in .csv to /work/sorted/tables,
those in .log to /work/sorted/logs. Every other file stays where it is.""",
        files=files,
        solution="""
mkdir -p sorted/text sorted/tables sorted/logs
for pair in txt:text csv:tables log:logs; do
  for file in inbox/*."${pair%%:*}"; do
    [ -e "$file" ] || continue
    mv "$file" "sorted/${pair##*:}/"
  done
done""",
        checks=checks,
        handed_in=["inbox", "sorted"],
        difficulty="easy",
    )


def repacked_archive(rng: Random) -> OwnTask:
    members = {
        f"{name}/{rng.choice(('notes', 'draft', 'scratch'))}{i}.txt": f"{name} {i}\n" for i, name in enumerate(_NAMES)
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in members.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    kept = {path: content for path, content in members.items() if "scratch" not in path}
    return OwnTask(
        name="files-repacked-archive",
        instruction="""
/work/all.tar.gz holds many files. Make /work/clean.tar.gz, packed with gzip, of the same files under the same paths,
without those whose file name begins with `scratch`.""",
        files={"all.tar.gz": gzip.compress(packed.getvalue(), 0, mtime=0)},
        solution="""
mkdir -p /tmp/unpacked
tar -xzf all.tar.gz -C /tmp/unpacked
find /tmp/unpacked -type f -name 'scratch*' -exec rm {} +
cd /tmp/unpacked
find . -type f | sed 's,^./,,' | sort > /tmp/list
tar -czf /work/clean.tar.gz -T /tmp/list""",
        checks=[archive_holds("clean.tar.gz", kept)],
        handed_in=["clean.tar.gz"],
    )


def damaged_files(rng: Random) -> OwnTask:
    files = {f"parts/{name}.bin": _letters(rng, rng.randint(50, 300)) for name in _NAMES}
    sums = {path: hashlib.sha256(content.encode()).hexdigest() for path, content in files.items()}
    damaged, missing = sorted(rng.sample(sorted(files), 3)), rng.choice(_NAMES)
    for path in damaged:
        files[path] += "x"
    gone = f"parts/{missing}.bin"
    files.pop(gone)
    listed = "".join(f"{digest}  {path}\n" for path, digest in sums.items())
    return OwnTask(
        name="files-damaged-files",
        instruction="""
/work/SHA256SUMS lists what the files of /work/parts should be, as `sha256sum` writes it. Write /work/report.json
with two lists of paths in alphabetical order, as they stand in the list: `damaged`, files that are something else,
and `missing`.""",
        files={**files, "SHA256SUMS": listed},
        solution="""
python3 - <<'CODE'
import hashlib, json, os
damaged, missing = [], []
for line in open("SHA256SUMS"):
    digest, path = line.split()
    if not os.path.exists(path):
        missing.append(path)
    elif hashlib.sha256(open(path, "rb").read()).hexdigest() != digest:
        damaged.append(path)
json.dump({"damaged": sorted(damaged), "missing": sorted(missing)}, open("report.json", "w"))
CODE""",
        checks=[json_is("report.json", {"damaged": [path for path in damaged if path != gone], "missing": [gone]})],
        handed_in=["report.json"],
    )


def runnable_scripts(rng: Random) -> OwnTask:
    files, wanted, given = dict[str, str](), dict[str, bool](), set[str]()
    for number, name in enumerate(_NAMES):
        is_script = number % 2 == 0
        path = f"tools/{name}" if is_script else f"tools/{name}.txt"
        files[path] = f"#!/bin/sh\necho {name}\n" if is_script else f"# {name}\n#! not at the beginning\n"
        wanted[path] = is_script
        if rng.random() < 0.5:
            given.add(path)
    if all((path in given) == wanted[path] for path in files):
        given ^= {f"tools/{_NAMES[0]}"}
    return OwnTask(
        name="files-runnable-scripts",
        instruction="""
In /work/tools some files are scripts: their first two characters are `#!`. Set the permissions so that exactly the
scripts may be executed by their owner, and no other file of the folder may. Contents stay as they are.""",
        files=files,
        executable=frozenset(given),
        solution="""
for file in tools/*; do
  if [ "$(head -c 2 "$file")" = '#!' ]; then chmod u+x "$file"; else chmod a-x "$file"; fi
done""",
        checks=[
            *(is_executable(path, wanted=runs) for path, runs in wanted.items()),
            *(text_is(path, content) for path, content in files.items()),
        ],
        handed_in=["tools"],
    )


MAKERS: tuple[Maker, ...] = (largest_files, sorted_by_kind, repacked_archive, damaged_files, runnable_scripts)
