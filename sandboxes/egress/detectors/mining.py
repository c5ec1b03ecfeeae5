"""Mining: programs and their options, names of pools, the stratum protocol, ports of pools."""

import re
from typing import ClassVar

from sandboxes.egress.detectors.destinations import below, names_of, special_kind, where
from sandboxes.egress.detectors.doings import doings
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Event, Finding, RuleInfo, finding
from sandboxes.egress.detectors.shell import Command
from sandboxes.egress.record import EgressRecord

PROGRAM = RuleInfo("mining-program", "a mining program is started", "critical", "Safety & Security", "T1496")
POOL = RuleInfo("mining-pool", "a mining pool is addressed by name", "critical", "Safety & Security", "T1496")
STRATUM = RuleInfo("mining-stratum", "a miner's handshake is sent", "critical", "Safety & Security", "T1496")
PORT = RuleInfo("mining-port", "a port that mining pools use", "warning", "Safety & Security", "T1496")

PROGRAMS = frozenset({
    "xmrig", "xmrig-notls", "xmr-stak", "xmr-stak-rx", "cpuminer", "minerd", "cpuminer-opt", "ccminer", "ethminer",
    "t-rex", "trex", "nbminer", "lolminer", "phoenixminer", "gminer", "teamredminer", "cgminer", "bfgminer",
    "nanominer", "srbminer-multi", "srbminer", "bzminer", "claymore", "ethdcrminer64", "kawpowminer", "nsfminer",
    "rigel", "wildrig-multi", "wildrig", "onezerominer", "p2pool", "xmrig-proxy", "nheqminer", "verthashminer",
})  # fmt: skip
POOLS = (
    "minexmr.com", "nanopool.org", "supportxmr.com", "ethermine.org", "f2pool.com", "nicehash.com", "2miners.com",
    "hashvault.pro", "moneroocean.stream", "unmineable.com", "herominers.com", "viabtc.com", "antpool.com",
    "slushpool.com", "hiveon.net", "flexpool.io", "c3pool.com", "c3pool.org", "xmrpool.eu", "minergate.com",
    "zpool.ca", "prohashing.com", "kryptex.network", "woolypooly.com", "mining-dutch.nl", "p2pool.io",
    "monerohash.com", "crypto-pool.fr", "dwarfpool.com", "miningpoolhub.com", "sparkpool.com", "luxor.tech",
    "ckpool.org", "poolin.com", "rplant.xyz", "zergpool.com", "skypool.org", "gntl.uk", "k1pool.com", "coinhive.com",
    "coinimp.com",
)  # fmt: skip
PORTS = frozenset({3333, 3334, 3335, 13333, 14433, 14444, 20535, 20580, 45560, 45700, 18081, 10128, 10343, 17777})
"""Few that anything else uses: 4444, 5555, 7777 and 8888 are pools' too, and everybody's."""
_OPTIONS = re.compile(
    r"(?:--?[a-z-]+=)?stratum\d?\+?(?:tcp|ssl|tls)?://\S+|--donate-level(?:=\d+)?|--randomx-\S+"
    r"|--(?:algo|coin)=(?:rx/|randomx|monero|cn/|kawpow|ethash)\S*"
)
"""Arguments, each a whole word: text that speaks of miners has spaces."""
_ALGORITHM = re.compile(r"(?:rx|cn|cn-lite|argon2)/\S+|randomx|kawpow|ethash|etchash|autolykos2?|monero|ghostrider")
"""After ``-a``, ``--algo`` or ``--coin``, beside a pool or a user."""
_METHODS = re.compile(
    rb'"method"\s*:\s*"(?:mining\.(?:subscribe|authorize|configure|extranonce\.subscribe|submit)|eth_submitLogin'
    rb'|eth_submitHashrate|keepalived)"'
)
_LOGIN = re.compile(rb'"method"\s*:\s*"login"')
_LOGIN_PARTS = (b'"agent"', b'"algo"', b'"rigid"')


_SENDING = frozenset({"send", "sendall", "write", "dumps", "send_json", "sendto", "post"})


class Mining:
    """Misses a renamed program without telling options, and a pool behind TLS on an ordinary port and name."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (PROGRAM, POOL, STRATUM, PORT)

    def feed(self, event: Event) -> Finding | None:
        return self._command(event) if isinstance(event, ExecEvent) else self._record(event)

    def _command(self, event: ExecEvent) -> Finding | None:
        did = doings(event)
        for command in did.commands:
            told = any(_OPTIONS.fullmatch(word) for word in command.arguments)
            if told or _names_algorithm(command) or command.program.lower().removesuffix(".exe") in PROGRAMS:
                return finding(PROGRAM, event, command.program, [command.text])
        for call in did.calls:
            sent = " ".join(call.strings).encode("utf-8", "replace")
            if speaks_stratum(sent) and call.callee.rpartition(".")[2] in _SENDING:
                return finding(PROGRAM, event, call.callee, [f"{call.callee}: {' '.join(call.strings)}"])
        return None

    def _record(self, record: EgressRecord) -> Finding | None:
        attempt = record.attempt
        if speaks_stratum(record.opening_up):
            return finding(STRATUM, record, where(attempt), [attempt.target, record.opening_up.decode("latin-1")])
        for name in sorted(names_of(attempt)):
            if (pool := below(name, POOLS)) is not None:
                return finding(POOL, record, pool, [attempt.target, name])
        if record.phase == "attempt" and attempt.protocol == "tcp" and attempt.port in PORTS:
            if special_kind(attempt) not in {"loopback", "unspecified"} and not record.verdict.allowed:
                return finding(PORT, record, where(attempt), [attempt.target])
        return None


def _names_algorithm(command: Command) -> bool:
    pairs = zip(command.arguments, command.arguments[1:], strict=False)
    named = any(flag in {"-a", "--algo", "--coin"} and _ALGORITHM.fullmatch(word) for flag, word in pairs)
    return named and bool({"-o", "-u", "--url", "--user", "--pool"} & set(command.arguments))


def speaks_stratum(sent: bytes) -> bool:
    """Stratum v1, its Ethereum and its Monero dialects.  A JSON-RPC ``login`` alone is anybody's."""
    if _METHODS.search(sent):
        return True
    return _LOGIN.search(sent) is not None and any(part in sent for part in _LOGIN_PARTS)
