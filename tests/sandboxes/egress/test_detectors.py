"""Each streaming detector both ways, at its bounds; and that hostile input neither stops nor slows them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.egress.connection_attempt import PROTOCOLS, ConnectionAttempt
from sandboxes.egress.decision import EgressDecision
from sandboxes.egress.detectors import beaconing, exfiltration, names, processes, scans, tunnels
from sandboxes.egress.detectors.actions import actions_of
from sandboxes.egress.detectors.detector import Context
from sandboxes.egress.detectors.exec_event import CODE_CHARACTERS, ExecEvent
from sandboxes.egress.detectors.finding import EVIDENCE_CHARACTERS, EVIDENCE_LINES
from sandboxes.egress.detectors.registry import RULES
from sandboxes.egress.detectors.shell import commands
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.detectors.tunnels import ssh_forwards
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord, Spread

POLICY = EgressPolicy()


def record(n=1, *, at=0.0, allowed=False, address="10.0.0.5", port=443, protocol="tcp", began=None, **more):
    fields = {name: more.pop(name) for name in ("name", "sni", "host", "query_type") if name in more}
    tried = ConnectionAttempt(
        sandbox="b", sequence=more.pop("sequence", n), at=at if began is None else began, protocol=protocol,
        address=address, port=port, **fields,
    )  # fmt: skip
    decision = EgressDecision(allowed=allowed, policy="p", reason="allowed-by-rule" if allowed else "no-rule")
    return EgressRecord(seq=n, attempt=tried, decision=decision, last_at=at, **more)


def shell(script, **more):
    return ExecEvent(sandbox="b", at=0.0, argv=("bash", "-c", script), **more)


def rules_of(detector, events):
    return {found.rule for event in events for found in detector.feed(event)}


@pytest.mark.parametrize(("hosts", "found"), [(scans.MANY_HOSTS - 1, set()), (scans.MANY_HOSTS, {"scan-hosts"})])
def test_a_scan_of_hosts_begins_at_its_bound(hosts, found):
    assert rules_of(scans.Scans(Context()), [record(n, address=f"10.0.0.{n}") for n in range(1, hosts + 1)]) == found


@pytest.mark.parametrize(("ports", "found"), [(scans.MANY_PORTS - 1, set()), (scans.MANY_PORTS, {"scan-ports"})])
def test_a_scan_of_ports_begins_at_its_bound(ports, found):
    assert rules_of(scans.Scans(Context()), [record(n, port=n) for n in range(1, ports + 1)]) == found


def test_a_scan_of_public_addresses_is_a_warning_and_of_private_ones_critical():
    def last(prefix):
        detector = scans.Scans(Context())
        found = [list(detector.feed(record(n, address=f"{prefix}.{n}"))) for n in range(1, scans.MANY_HOSTS + 1)]
        return found[-1][0]

    assert (last("203.0.113").severity, last("192.168.7").severity) == ("warning", "critical")


def test_hosts_outside_the_window_and_allowed_ones_are_no_scan():
    slow = [record(n, address=f"10.0.0.{n}", at=n * scans.WINDOW_S) for n in range(1, 100)]
    allowed = [record(n, address=f"203.0.113.{n}", allowed=True) for n in range(1, 100)]
    assert rules_of(scans.Scans(Context()), [*slow, *allowed]) == set()


def test_a_flood_that_was_summed_up_is_still_a_scan():
    summed = record(count=5000, spread=Spread(addresses=1, ports=1000, names=0))
    assert rules_of(scans.Scans(Context()), [summed]) == {"scan-ports"}


def queries(number, pattern, every_s=1.0, **more):
    return [
        record(n, at=n * every_s, protocol="dns", port=None, name=pattern.format(n=n), query_type="A", **more)
        for n in range(1, number + 1)
    ]


CODED = "{n:02}f3a9c17be2d04856a7b1" + "x9k2m4"


@pytest.mark.parametrize(
    ("number", "found"), [(names.CODED_NAMES - 1, set()), (names.CODED_NAMES, {"dns-exfiltration"})]
)
def test_coded_names_are_exfiltration_from_their_bound_on(number, found):
    assert rules_of(names.Names(Context()), queries(number, CODED + ".example.net")) == found


def test_the_same_coded_name_again_carries_nothing_more():
    assert rules_of(names.Names(Context()), queries(50, "9cf3a9c17be2d04856a7b1x9k2m4.example.net")) == set()


@pytest.mark.parametrize(("number", "found"), [(names.MANY_DENIED - 1, set()), (names.MANY_DENIED, {"dns-flood"})])
def test_denied_names_are_a_flood_from_the_bound_on(number, found):
    assert rules_of(names.Names(Context()), queries(number, "www.site{n}.example", every_s=0.01)) == found


def test_a_flood_that_was_summed_up_counts_in_full():
    one = queries(1, "www.example.net")[0].model_copy(update={"count": names.MANY_DENIED})
    assert rules_of(names.Names(Context()), [one]) == {"dns-flood"}


@pytest.mark.parametrize("inner", ["www", "static-assets", "eu-west-1.compute", "d1a2b3c4e5f6", "a.b.c.d.e.f.g.h",
                                   "jenkins-build-2026-11-21", "xn--bcher-kva"])  # fmt: skip
def test_names_that_people_use_are_not_coded(inner):
    assert not names.is_coded(inner)


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ([60.0] * (beaconing.SLOW_ATTEMPTS - 1), {"beacon"}),
        ([60.0] * (beaconing.SLOW_ATTEMPTS - 2), set()),
        ([2.0] * (beaconing.ATTEMPTS - 1), {"beacon"}),
        ([2.0] * (beaconing.ATTEMPTS - 2), set()),
        ([beaconing.SHORTEST_S] * 7, {"beacon"}),
        ([beaconing.SHORTEST_S - 0.1] * 7, set()),
        ([60.0, 80.0, 40.0, 60.0, 80.0, 40.0, 60.0], {"beacon"}),
        ([60.0, 110.0, 10.0, 60.0, 110.0, 10.0, 60.0], set()),
        ([1.0, 2.0, 4.0, 8.0, 16.0], set()),
    ],
)
def test_a_beacon_is_regular_and_neither_fast_nor_rare(gaps, found):
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap)
    assert rules_of(beaconing.Beacons(Context()), [record(n, at=at) for n, at in enumerate(times, 1)]) == found


def test_contacts_through_many_ports_or_names_of_one_zone_are_one_beacon():
    ports = [record(n, at=2.0 * n, port=4000 + n) for n in range(1, 7)]
    asked = [
        record(n, at=2.0 * n, protocol="dns", port=53, address="127.0.0.1", name=f"a{n}.c2.example.net")
        for n in range(1, 7)
    ]
    assert rules_of(beaconing.Beacons(Context()), ports) == {"beacon"}
    assert rules_of(beaconing.Beacons(Context()), asked) == {"beacon"}


def test_what_is_waited_for_by_asking_again_is_no_beacon():
    database = [record(n, at=2.0 * n, port=5432) for n in range(1, 12)]
    itself = [record(n, at=2.0 * n, address="127.0.0.1", port=8000) for n in range(1, 12)]
    index = [record(n, at=2.0 * n, sni="pypi.org") for n in range(1, 12)]
    assert rules_of(beaconing.Beacons(Context()), [*database, *itself, *index]) == set()


def test_polling_what_is_allowed_is_no_beacon():
    assert rules_of(beaconing.Beacons(Context()), [record(n, at=60.0 * n, allowed=True) for n in range(1, 30)]) == set()


@pytest.mark.parametrize(
    ("up", "down", "severity"),
    [
        (exfiltration.WARNING_BYTES - 1, 0, None),
        (exfiltration.WARNING_BYTES, 0, "warning"),
        (exfiltration.WARNING_BYTES, exfiltration.WARNING_BYTES // 4 + 1, None),
        (exfiltration.CRITICAL_BYTES - 1, 0, "warning"),
        (exfiltration.CRITICAL_BYTES, 0, "critical"),
    ],
)
def test_sending_more_than_receiving_is_judged_by_bytes_and_ratio(up, down, severity):
    sent = record(allowed=True, phase="traffic", bytes_up=up, bytes_down=down, sni="api.example.org")
    found = list(exfiltration.Volume(Context()).feed(sent))
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])


def test_volume_adds_up_over_connections_but_not_over_destinations():
    piece = exfiltration.WARNING_BYTES // 4
    one = [record(n, allowed=True, phase="traffic", bytes_up=piece, sni="a.example.org") for n in range(1, 5)]
    many = [record(n, allowed=True, phase="traffic", bytes_up=piece, sni=f"a{n}.example.org") for n in range(1, 5)]
    assert rules_of(exfiltration.Volume(Context()), one) == {"exfiltration-volume"}
    assert rules_of(exfiltration.Volume(Context()), many) == set()
    assert rules_of(exfiltration.Volume(Context(uploads=("example.org",))), one) == set()


@pytest.mark.parametrize(("lasted_s", "found"), [(tunnels.QUIET_S - 1, set()), (tunnels.QUIET_S, {"quiet-connection"})])
def test_a_quiet_connection_is_long(lasted_s, found):
    times = [lasted_s * part / 6 for part in range(1, 7)]
    events = [
        record(n, sequence=1, began=0.0, at=at, allowed=True, phase="traffic", bytes_up=36, bytes_down=36, packets_up=1)
        for n, at in enumerate(times, 1)
    ]
    assert rules_of(tunnels.Tunnels(Context()), events) == found


@pytest.mark.parametrize(
    ("port", "allowed", "severity"),
    [(22, True, None), (22, False, "warning"), (443, True, "critical"), (443, False, "critical")],
)
def test_ssh_is_judged_by_port_and_decision(port, allowed, severity):
    spoken = record(port=port, allowed=allowed, opening_up=b"SSH-2.0-OpenSSH_9.2\r\n")
    found = list(tunnels.Tunnels(Context()).feed(spoken))
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("arguments", "forwards"),
    [
        ("-R 1:a:2 h", True), ("-NR 1:a:2 h", True), ("-fN -R1:a:2 h", True), ("-D 1080 h", True), ("-L 1:a:2 h", True),
        ("-p 22 -i key -R 1:a:2 h", True), ("h -R 1:a:2", True), ("-o RemoteForward=1 h", True), ("-w 0:0 h", True),
        ("h ls -R /srv", True), ("h uptime", False), ("-i ROUTER.pem h", False), ("-l Rita h", False),
        ("-oBatchMode=yes -T git@h", False), ("-v h 'rm -rf x'", False),
    ],
)  # fmt: skip
def test_ssh_options_are_read_as_ssh_reads_them(arguments, forwards):
    """``h ls -R`` is the price of seeing options behind the host."""
    import shlex

    assert ssh_forwards(tuple(shlex.split(arguments))) is forwards


@pytest.mark.parametrize(
    ("refused", "found"), [(processes.REFUSED_FORKS - 1, set()), (processes.REFUSED_FORKS, {"fork-bomb"})]
)
def test_refused_processes_are_a_bomb_from_the_bound_on(refused, found):
    assert rules_of(processes.ForkBombs(Context()), [shell("./a", forks_refused=refused)]) == found


@pytest.mark.parametrize(
    ("script", "programs"),
    [
        ("sudo -u root nohup nice -n 19 /opt/x/run --a", ["run"]),
        ("A=1 B='2 3' env C=4 timeout -k 5 10s ./go", ["go"]),
        ("a && b || c; d | e & f\ng", list("abcdefg")),
        ("bash -c 'sh -c \"inner x\"'", ["bash", "sh", "inner"]),
        ("cat > f.sh <<EOF\nhidden\nEOF\nls", ["cat", "ls"]),
        ("cat > f.sh <<EOF\nhidden\nEOF\nbash f.sh", ["cat", "bash", "hidden"]),
        ("bash <<'X'\nhidden\nX", ["bash", "hidden"]),
        ("echo 'a; b | c' \"d && e\" # f", ["echo"]),
        ("if true; then x; else y; fi", ["true", "x", "y", "fi"]),
        ("echo 'open quote; xmrig", ["echo", "xmrig"]),
        ("echo a # it's b\nc#d\n#e\nf", ["echo", "c#d", "f"]),
        ('./a\\ b "c\\"d"\'e f\'; g', ["a b", "g"]),
    ],
)
def test_a_script_is_read_as_the_programs_that_it_runs(script, programs):
    assert [command.program for command in commands(script)] == programs


def test_what_stands_in_for_its_output_is_run_too():
    assert {"inner", "other"} <= {command.program for command in commands('echo "$(inner --x)" `other`')}


def test_text_that_only_speaks_of_actions_is_none():
    spoken = ExecEvent(
        sandbox="b",
        at=0.0,
        code='"""ssh -R 1:a:2 h"""\n# xmrig -o stratum+tcp://p:1\nNAMES = {"ngrok", "xmrig"}\nprint(NAMES)',
    )
    assert actions_of(spoken).commands == []
    assert Suite(POLICY).feed(spoken) == []


def test_the_same_story_is_reported_once_until_it_grows_old():
    suite = Suite(POLICY)
    reported = [len(suite.feed(shell("./xmrig").model_copy(update={"at": at}))) for at in (0.0, 299.0, 300.0)]
    assert reported == [1, 0, 1]


def test_a_rule_can_be_left_out_and_a_wrong_id_is_refused():
    assert Suite(POLICY, without=frozenset({"mining-program"})).feed(shell("./xmrig")) == []
    with pytest.raises(ValueError, match="no such rule"):
        Suite(POLICY, without=frozenset({"minning"}))


def test_protected_paths_are_the_environments():
    suite = Suite(POLICY, protected=("/srv/judge/*",))
    assert [found.rule for found in suite.feed(shell("rm /srv/judge/a.py"))] == ["tamper-judgement"]
    assert suite.feed(shell("rm /work/hidden_tests/a.py")) == []


def test_rules_have_different_ids_and_say_what_they_are():
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.title and rule.attack.startswith("T") for rule in RULES)


def test_evidence_is_bounded_and_printable():
    (found,) = Suite(POLICY).feed(shell("./xmrig " + "\x1b[31m" * 5000))
    assert len(found.evidence) <= EVIDENCE_LINES
    assert all(len(line) <= EVIDENCE_CHARACTERS and line.isprintable() for line in found.evidence)


HOSTILE = {
    "deep parentheses": "(" * 100_000,
    "deep Python": "x = " + "[" * 50_000,
    "many unary minus": "x = " + "-" * 100_000 + "1",
    "substitutions": "$(" * 50_000,
    "here-documents": "cat <<A\n" * 20_000,
    "open quotes": "'" * 99_999,
    "a long word": "a" * 250_000,
    "bomb-like": ":(){" * 50_000,
    "names and pipes": "a|a&" * 60_000,
    "base64": "base64 " + "QUFB" * 60_000,
    "URLs": "http://" * 30_000,
    "NULs": "\x00" * 100_000,
    "pluses": "x = " + " + ".join(["'a'"] * 20_000),
    **{f"{depth} pluses": "f(" + " + ".join(["'a'"] * depth) + ")" for depth in (40, 200, 900, 2500)},
    **{f"{depth} attributes": "x" + ".a" * depth + "()" for depth in (200, 900, 2500)},
    **{f"{depth} calls of calls": "x" + ".a()" * depth for depth in (200, 900, 2500)},
    **{f"{depth} parentheses": "f(" * depth + ")" * depth for depth in (60, 150)},
    "an attribute chain": "x" + ".a" * 50_000 + "()",
    "nested calls": "f(" * 5_000 + ")" * 5_000,
    "f-string": "f'" + "{x}" * 30_000 + "'",
    "commands": "echo a;" * 30_000,
    "nested calls round a list": "run(" * 90 + "[" + "'a'," * 60_000 + "]" + ")" * 90,
    "scripts of a program": "run(['x', 'a base64 QUFBQUFBQUFBQUFBQUFBQQ=='])\n" * 5_000,
    "chains of calls": ("x" + ".read_text('a')" * 90 + "\n") * 150,
    "calls of calls of calls": ("x" + "()" * 900 + "\n") * 130,
    "nested loops": "".join(" " * n + "while 1:\n" for n in range(90)) + (" " * 90 + "a()\n") * 2500,
    "wrappers": "sudo -u x " * 25_000,
    "assignments": "a=1 " * 60_000,
    "loops and spaces": "while true" + " " * 250_000,
    "downloads": ";".join(f"curl -o x{n} http://a{n}.example;bash y" for n in range(6000)),
    "browsers": "cat " + ".mozilla/" * 27_000,
    "processes": "curl @x" + "/proc/" * 40_000,
    "blank lines": "\n" * 200_000,
    "runs of what is decoded": "exec(" * 40_000,
    "names put together": "getattr(os, " * 20_000,
    "assignments to a judge": "grader.a.b.c" * 20_000 + "\n",
    "decoders in pipes": "| base64 -d " * 20_000,
    "an equality and blank lines": "def __eq__(self):" + "\n" * 100_000,
    "a loop and blank lines": "while(1)" + "\n" * 100_000,
    "a forward without an address": "x -F" + "a" * 100_000,
    "a chain of assertions": "_pytest" + "a." * 50_000,
    "functions in functions": "".join(" " * n + f"def f{n}():\n" for n in range(90))
    + " " * 90
    + "Process(target=f0)\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_neither_raises_nor_takes_long(text):
    suite = Suite(POLICY)
    started_s = time.thread_time()
    suite.feed(ExecEvent(sandbox="b", at=0.0, code=text))
    suite.feed(shell(text))
    suite.feed(shell(f"python3 -c '{text}'"))
    # Of the processor, so that a busy machine changes nothing: a few hundred ms, where quadratic work takes minutes.
    assert time.thread_time() - started_s < 10.0


@pytest.mark.parametrize(
    "event",
    [
        ExecEvent(sandbox="b", at=0.0, code="#" * 2**20 + "\n!./xmrig\n" + "#" * 2**20),
        ExecEvent(sandbox="b", at=0.0, argv=("bash", "-c", ":" * 2**20 + "; ./xmrig; " + ":" * 2**20)),
        ExecEvent(sandbox="b", at=0.0, argv=("bash", *["-v"] * 200_000, "-c", "./xmrig")),
        ExecEvent(sandbox="b", at=0.0, argv=("bash", "-s"), stdin="#" * 2**20 + "\n./xmrig\n" + "#" * 2**20),
        ExecEvent(sandbox="b", at=0.0, argv=("bash", "-c", ":;" * 60_000 + "./xmrig")),
        ExecEvent(sandbox="b", at=0.0, code="f(" * 90 + "[" + "'a'," * 60_000 + "]" + ")" * 90),
        ExecEvent(sandbox="b", at=0.0, code="f()\n" * 60_000 + "os.system('./xmrig')"),
        ExecEvent(
            sandbox="b", at=0.0, argv=("python3", "-c", "x = " + "+".join("1" * 3000) + "\nos.system('./xmrig')")
        ),
        shell("".join(f"bash <<A{n}\n" for n in range(9)) + "./xmrig\n" + "".join(f"A{n}\n" for n in range(8, -1, -1))),
    ],
    ids=[
        "padded code",
        "padded script",
        "many arguments",
        "padded input",
        "commands",
        "nested calls",
        "calls",
        "a sum too deep for a syntax tree",
        "depth",
    ],
)
def test_what_is_not_read_is_reported(event):
    (found,) = [found for found in Suite(POLICY).feed(event) if found.rule == "unread-command"]
    assert found.severity == "warning"  # text is a hint, and what it hides is told by what it does
    assert found.evidence


@pytest.mark.parametrize(
    "event",
    [
        ExecEvent(sandbox="b", at=0.0, argv=("python3", "solution.py"), stdin="1 2 3\n" * 200_000),
        ExecEvent(sandbox="b", at=0.0, argv=("bash", "-c", "sort | uniq -c"), stdin="1 2 3\n" * 200_000),
        ExecEvent(sandbox="b", at=0.0, code="x = " + repr(list(range(30_000)))),
        ExecEvent(sandbox="b", at=0.0, code="print(sum(sorted(list(" + repr([1] * 60_000) + "))))"),
        ExecEvent(
            sandbox="b",
            at=0.0,
            code="print(" + " + ".join(map(str, range(300))) + ", " + " + ".join(["'a'"] * 300) + ")",
        ),
        ExecEvent(sandbox="b", at=0.0, argv=("git", "add", *(f"src/file{n}.py" for n in range(5000)))),
        shell("\n".join(f"if test -f conf{n}; then echo yes; fi" for n in range(1500))),
    ],
    ids=[
        "data for a program",
        "data for a script",
        "a table",
        "a table in calls",
        "long sums",
        "many files",
        "a long script",
    ],
)
def test_much_ordinary_work_is_read_or_is_no_code(event):
    assert Suite(POLICY).feed(event) == []


def test_a_long_file_that_is_written_is_reported_and_alarms_nobody():
    written = ExecEvent(sandbox="b", at=0.0, writes="data.csv", code="1,2,3\n" * 200_000)
    assert [(found.rule, found.severity) for found in Suite(POLICY).feed(written)] == [("unread-command", "info")]


def test_what_is_padded_on_one_side_is_still_seen():
    for padded in ("./xmrig\n" + "#" * 2 * CODE_CHARACTERS, "#" * 2 * CODE_CHARACTERS + "\n!./xmrig"):
        found = Suite(POLICY).feed(ExecEvent(sandbox="b", at=0.0, code=padded))
        assert [finding.rule for finding in found] == ["mining-program", "unread-command"]


PIECES = st.sampled_from(
    ["xmrig", "ssh", "-R", "1:a:2", "curl", "https://a.example/x", "|", "bash", "-c", "'", '"', "$(", ")", "`", "<<EOF"]
    + [
        "\n",
        "EOF",
        "&",
        ";",
        ">",
        "/etc/resolv.conf",
        "import os",
        "while True:",
        " os.fork()",
        "(",
        "base64",
        "{",
        "}",
    ]
    + [
        "QUFBQUFBQUFBQUFBQUFBQQ==",
        "\x00",
        "\u2603",
        "find",
        "/",
        "nc",
        "-e",
        "!",
        "chmod",
        "u+s",
        "f'{x}'",
        "open('a')",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=8), max_size=40), st.sampled_from(["", " "]))
def test_no_text_makes_a_detector_raise(pieces, glue):
    text = glue.join(pieces)
    Suite(POLICY).feed(ExecEvent(sandbox="b", at=0.0, code=text, argv=("bash", "-c", text), stdin=text))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.text(max_size=300), st.sampled_from(PROTOCOLS), st.booleans())
def test_no_record_makes_a_detector_raise(opening, name, protocol, allowed):
    tried = {"protocol": protocol, "name": name, "sni": name, "host": name, "query_type": name, "allowed": allowed}
    suite = Suite(POLICY)
    suite.feed(record(1, opening_up=opening[:256], **tried))
    suite.feed(record(2, phase="traffic", address=None, port=None, **tried))
