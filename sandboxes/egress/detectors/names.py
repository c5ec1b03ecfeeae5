"""Data carried in names, and ways around the resolver."""

import re
from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.destinations import Windows, below, entropy_bits, names_of, zone_of
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.record import EgressRecord

EXFILTRATION = RuleInfo(
    "dns-exfiltration",
    "data is carried in DNS names",
    "critical",
    "Safety & Security",
    "T1048.003",
    "4 different names of one zone within 60 s with 24 random-looking characters each, 2 with 100 "
    "characters, or 40 different ones half of which look random; allowed zones as well",
    "what is slow, spread over many zones, or written in an alphabet of ordinary words",
    "`names.CODED_*`",
)
TYPES = RuleInfo(
    "dns-record-types",
    "record types that carry data",
    "warning",
    "Safety & Security",
    "T1071.004",
    "8 TXT, NULL or ANY queries within 60 s",
    "slower queries",
    "`names.MANY_CARRYING`",
)
FLOOD = RuleInfo(
    "dns-flood",
    "many denied names in a short time",
    "warning",
    "Safety & Security",
    "T1071.004",
    "200 denied queries within 60 s, or 16 different names of one zone",
    "slower queries",
    "`names.MANY_DENIED`",
)
AROUND = RuleInfo(
    "dns-around",
    "another resolver is addressed over HTTPS or TLS",
    "warning",
    "Safety & Security",
    "T1572",
    "public resolvers over HTTPS or TLS; a connection to one on port 443 that names nobody and says nothing is info",
    "resolvers with names of their own",
    "allow them by a rule",
)

WINDOW_S = 60.0
CODED_NAMES = 4
"""Different names of one zone within the window that look like coded data."""
CODED_LENGTH = 24
SHORTEST_RANDOM = 6
CODED_BITS = 3.2
MANY_NAMES = 40
"""Different names of one zone within the window, long or not."""
MANY_NAMES_BITS = 3.0
LONG_BELOW = 100
"""Characters below the zone; no host that people use is that long."""
CARRYING = frozenset({"TXT", "NULL", "PRIVATE", "ANY", "KEY", "TYPE65399", "TYPE10"})
MANY_CARRYING = 8
MANY_DENIED = 200
GUESSED_NAMES = 16
"""Different denied names below one zone within the window: somebody looks for what there is."""
RESOLVERS = (
    "dns.google", "cloudflare-dns.com", "one.one.one.one", "dns.quad9.net", "doh.opendns.com", "dns.nextdns.io",
    "dns.adguard-dns.com", "doh.cleanbrowsing.org",
)  # fmt: skip
RESOLVER_ADDRESSES = frozenset({
    "1.1.1.1", "1.0.0.1", "8.8.8.8", "8.8.4.4", "9.9.9.9", "149.112.112.112", "208.67.222.222", "208.67.220.220",
    "2606:4700:4700::1111", "2001:4860:4860::8888", "2620:fe::fe",
})  # fmt: skip


class Names(Detector):
    """Misses what is slow, or spread over many zones, or hidden in which allowed names are asked and when."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (EXFILTRATION, TYPES, FLOOD, AROUND)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._below: Windows[str] = Windows(WINDOW_S)
        self._carrying: Windows[str] = Windows(WINDOW_S)
        self._denied: Windows[int] = Windows(WINDOW_S, items=2 * MANY_DENIED)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord) or event.phase != "attempt":
            return
        if event.attempt.protocol != "dns":
            yield from self._around(event)
        elif event.attempt.name is not None:
            yield from self._coded(event, event.attempt.name)
            yield from self._typed(event)
            yield from self._flood(event)

    def _coded(self, record: EgressRecord, name: str) -> Iterator[Finding]:
        inner, zone = zone_of(name)
        if not inner or zone.endswith("arpa"):
            return
        different = list(dict.fromkeys(self._below.add(zone, record.last_at, inner)))
        coded = [name for name in different if is_coded(name)]
        long = [name for name in different if len(name) >= LONG_BELOW]
        several = record.spread.names if record.spread else 0
        many = max(len(different), several) >= MANY_NAMES and entropy_bits("".join(different)) >= MANY_NAMES_BITS
        random = sum(any(map(looks_random, re.split(r"[.\-_]", name))) for name in different) >= len(different) / 2
        if not record.decision.allowed and max(len(different), several) >= GUESSED_NAMES:
            evidence = f"{len(different)} names below {zone} within {WINDOW_S:.0f} s"
            if not (len(coded) >= CODED_NAMES or len(long) >= 2 or (many and random)):
                yield finding(FLOOD, record, zone, [evidence, *different])
        if len(coded) >= CODED_NAMES or len(long) >= 2 or (many and random):
            evidence = f"{len(different)} names below {zone} within {WINDOW_S:.0f} s, {len(coded)} of them coded"
            yield finding(EXFILTRATION, record, zone, [evidence, *(coded or long or different)])

    def _typed(self, record: EgressRecord) -> Iterator[Finding]:
        kind = record.attempt.query_type or ""
        if kind.upper() not in CARRYING:
            return
        asked = self._carrying.add("sandbox", record.last_at, record.attempt.name or "")
        if len(set(asked)) < MANY_CARRYING and record.count < MANY_CARRYING:
            return
        evidence = f"{len(asked)} {kind} queries within {WINDOW_S:.0f} s"
        yield finding(TYPES, record, zone_of(record.attempt.name or "")[1], [evidence, *asked[-4:]])

    def _flood(self, record: EgressRecord) -> Iterator[Finding]:
        if record.decision.allowed:
            return
        number = sum(self._denied.add("sandbox", record.last_at, record.count))
        evidence = f"{number} denied queries within {WINDOW_S:.0f} s"
        if number >= MANY_DENIED:
            yield finding(FLOOD, record, "dns", [evidence, record.attempt.target])

    def _around(self, record: EgressRecord) -> Iterator[Finding]:
        attempt = record.attempt
        if record.decision.allowed or attempt.port not in {443, 853}:
            return
        named = [name for name in names_of(attempt) if below(name, RESOLVERS) is not None]
        if named or attempt.address in RESOLVER_ADDRESSES:
            spoken = bool(named or record.opening_up or attempt.port == 853)  # a connection alone tries the network
            yield finding(AROUND, record, "resolver", [attempt.target, *named], "warning" if spoken else "info")


def is_coded(inner: str) -> bool:
    """Enough random-looking characters for data; words, years and one short hash among words are not."""
    random = "".join(part for part in re.split(r"[.\-_]", inner) if looks_random(part))
    return len(random) >= CODED_LENGTH and entropy_bits(random) >= CODED_BITS


def looks_random(part: str) -> bool:
    """Digits amid letters, or hardly a vowel: no word of a language that names hosts."""
    if len(part) < SHORTEST_RANDOM:
        return False
    digits = sum(letter.isdigit() for letter in part)
    vowels = sum(letter in "aeiouy" for letter in part)
    return 0.15 <= digits / len(part) <= 0.95 or vowels / len(part) < 0.18
