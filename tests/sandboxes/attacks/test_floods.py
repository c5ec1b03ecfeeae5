"""Floods from inside: whatever is tried, and however fast, is counted to the last, with its destination.

What is tried beside a flood keeps its records, and a neighbour its answers.  Nothing here looks at a clock.
"""

from collections import Counter

import pytest

from tests.sandboxes.watched_scene import Scene, allowing, scene

FLOOD = 5000
BESIDE = """
import random
def half_open(address, port):
    global tries
    tries += 1
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET); made.setblocking(False)
    made.connect_ex((address, port)); made.close()
def datagram(address, port, say=b"x"):
    global tries
    tries += 1
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try: made.sendto(say, (address, port))
    except OSError: pass
    made.close()
def raw():
    global tries
    tries += 1
    try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    except OSError: pass
def beside(number):
    # The 300 that a flood is to hide.
    if number < 100: half_open("198.51.100.%d" % (number + 1), 4000 + number)
    elif number < 150: half_open("2001:db8:1::%x" % number, 4000 + number)
    elif number < 250: datagram("198.51.100.%d" % (number - 99), 5000 + number)
    else: datagram("192.0.2.%d" % (number - 200), 53, query("n%d.example.net" % number))
def flood(count, one):
    for number in range(count):
        one(number)
        if number % (count // 300) == 0 and number // (count // 300) < 300:
            beside(number // (count // 300))
"""
FLOODS = {
    "the gateway's own port": 'flood(FLOOD, lambda n: half_open("127.0.0.1", 1))',
    "the gateway's own port by ipv6": 'flood(FLOOD, lambda n: half_open("::1", 1))',
    "the gateway's port elsewhere": 'flood(FLOOD, lambda n: half_open("203.0.113.5", 1))',
    "one destination": 'flood(FLOOD, lambda n: half_open("203.0.113.5", 443))',
    "many destinations": 'flood(FLOOD, lambda n: half_open("203.0.113.%d" % (n % 250 + 1), 1024 + n))',
    "closed ports of its own": 'flood(FLOOD, lambda n: half_open("127.0.0.1", 2000 + n % 3000))',
    "datagrams": 'flood(FLOOD, lambda n: datagram("203.0.113.5", 9))',
    "datagrams to the gateway's port": 'flood(FLOOD, lambda n: datagram("127.0.0.1", 1))',
    "questions": 'flood(FLOOD, lambda n: datagram("203.0.113.53", 53, query("%x.example.net" % n)))',
    "names by tcp": 'flood(FLOOD, lambda n: half_open("203.0.113.53", 53))',
    "refused sockets": "flood(1500, lambda n: raw())",
    "all of them": """
kinds = [lambda n: half_open("127.0.0.1", 1), lambda n: half_open("203.0.113.5", 443), lambda n: raw(),
         lambda n: datagram("203.0.113.53", 53, query("a.example.net")), lambda n: datagram("127.0.0.1", 7),
         lambda n: half_open("::1", 8), lambda n: datagram("2001:db8::9", 123)]
flood(FLOOD, lambda n: kinds[n % len(kinds)](n))
""",
}


def hidden(staged: Scene) -> Counter[tuple[str, str | None, int | None]]:
    """How often each of the 300 was recorded."""
    found: Counter[tuple[str, str | None, int | None]] = Counter()
    for record in staged.attempts:
        attempt = record.attempt
        if (attempt.address or "").startswith(("198.51.100.", "2001:db8:1::", "192.0.2.")):
            found[attempt.protocol, attempt.address, attempt.port] += record.count
    return found


@pytest.mark.parametrize("program", FLOODS.values(), ids=FLOODS)
async def test_a_flood_hides_nothing_that_is_tried_beside_it(program):
    async with scene(timeout_s=60) as staged:
        await staged.attack(BESIDE + program.replace("FLOOD", str(FLOOD)))
    assert staged.recorded == staged.tried
    expected = [("tcp", f"198.51.100.{number + 1}", 4000 + number) for number in range(100)]
    expected += [("tcp", f"2001:db8:1::{number:x}", 4000 + number) for number in range(100, 150)]
    expected += [("udp", f"198.51.100.{number - 99}", 5000 + number) for number in range(150, 250)]
    expected += [("dns", f"192.0.2.{number - 200}", 53) for number in range(250, 300)]
    assert hidden(staged) == Counter(expected)
    without = [record for record in staged.attempts if record.attempt.address is None]
    assert {record.attempt.protocol for record in without} <= {"raw"}, "a refused socket is the only one that has none"
    assert not any(record.decision.allowed for record in staged.attempts)


async def test_more_destinations_than_the_kernel_counts_by_are_counted_all_the_same():
    async with scene(timeout_s=120) as staged:
        await staged.attack(BESIDE + 'for number in range(20000): half_open("203.0.113.7", 1024 + number)')
    assert staged.recorded == staged.tried == 20_000


async def test_what_the_kernel_counted_belongs_to_the_turn_in_which_it_was_tried():
    program = """
import socket
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({count}):
    for port in (9, 53):
        try: made.sendto(b"x", ("203.0.113.5", port))
        except OSError: pass
    half_open = socket.socket(); half_open.setblocking(False)
    half_open.connect_ex(("203.0.113.5", 443)); half_open.close()
"""
    counts = {"turn 1": 1200, "turn 2": 700, None: 900}
    async with scene(timeout_s=60) as staged:
        for label, count in counts.items():
            staged.sandbox.label(label)
            await staged.sandbox.run_python(program.format(count=count))
    found: Counter[tuple[str | None, str]] = Counter()
    for record in staged.attempts:
        found[record.label, record.attempt.protocol] += record.count
    assert found == {(label, protocol): count for label, count in counts.items() for protocol in ("tcp", "udp", "dns")}


async def test_connections_that_ask_port_53_nothing_belong_to_the_turn_in_which_they_were_made():
    """They wait for a question until the next turn has begun."""
    async with scene(timeout_s=60) as staged:
        staged.sandbox.label("turn 1")
        await staged.attack("""
            held = []
            for number in range(20):
                made = socket.socket(); made.connect(("203.0.113.53", 53)); held.append(made); tries += 1
            if os.fork() == 0:
                os.setsid(); os.close(1); os.close(2); time.sleep(60)
        """)
        staged.sandbox.label("turn 2")
        await staged.until(lambda: staged.recorded == staged.tried)
    assert staged.tried == 20
    assert {record.label for record in staged.attempts} == {"turn 1"}


async def test_a_pool_user_has_no_attempt_of_the_one_before():
    async with scene(timeout_s=60) as staged:
        await staged.attack(BESIDE + "for number in range(3000): datagram('203.0.113.5', 9)")
        await staged.sandbox.reset()
        first = staged.tried
        await staged.attack(BESIDE + "for number in range(2000): datagram('203.0.113.6', 9)")
    users = list(dict.fromkeys(record.attempt.sandbox for record in staged.attempts))
    counted = [sum(record.count for record in staged.attempts if record.attempt.sandbox == user) for user in users]
    assert counted == [first, staged.tried - first] == [3000, 2000]


async def test_connections_to_port_53_count_as_every_other():
    """They are open connections, and bound by the quota on those, with queries or without."""
    policy = allowing("files.example.org")
    policy = policy.model_copy(update={"quotas": policy.quotas.model_copy(update={"connections": 3})})
    async with scene(policy) as staged:
        await staged.attack("""
            held = []
            for number in range(20):
                made = socket.socket(); made.connect(("203.0.113.53", 53)); held.append(made); tries += 1
            for made in held[:3]:
                message = query("t.example.net")
                made.sendall(struct.pack("!H", len(message)) + message)
                made.settimeout(10); made.recv(100)
            for made in held[3:]:
                made.settimeout(10)
                try: made.recv(1)  # until it is ended
                except OSError: pass
        """)
    assert staged.recorded == staged.tried == 20
    assert {record.decision.reason for record in staged.attempts} == {"quota-connections", "no-rule"}


async def test_the_gateways_own_port_leads_to_nobody():
    """It would fill the queue in which all other connections wait."""
    async with scene() as staged:
        result = await staged.attack("""
            for address in ("127.0.0.1", "127.9.9.9", "::1"):
                tries += 1
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                print(socket.socket(family).connect_ex((address, 1)))
        """)
    assert result.stdout.splitlines()[:3] == ["111"] * 3, "refused by the rules, and not accepted by the gateway"
    assert [record.attempt.target for record in staged.attempts] == [
        "tcp 127.0.0.1:1",
        "tcp 127.9.9.9:1",
        "tcp [::1]:1",
    ]
