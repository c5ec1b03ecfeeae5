"""Mining: programs and their options, names of pools, the stratum protocol, ports of pools."""

import re
from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import actions_of
from sandboxes.egress.detectors.destinations import below, names_of, special_kind, where
from sandboxes.egress.detectors.detector import Detector
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.shell import Command
from sandboxes.egress.record import EgressRecord

PROGRAM = RuleInfo(
    "mining-program",
    "a mining program is started",
    "critical",
    "Safety & Security",
    "T1496",
    "miners by name; a pool beside a worker or a wallet, stratum addresses and miners' options whatever the "
    "name; code that sends a handshake",
    "a renamed miner whose configuration lies in a file, until it speaks to a pool",
    "`mining.PROGRAMS`",
)
POOL = RuleInfo(
    "mining-pool",
    "a mining pool is addressed by name",
    "critical",
    "Safety & Security",
    "T1496",
    "pools in DNS, SNI, Host",
    "pools by address or by a name of one's own",
    "`mining.POOLS`",
)
STRATUM = RuleInfo(
    "mining-stratum",
    "a miner's handshake is sent",
    "critical",
    "Safety & Security",
    "T1496",
    "the first bytes of stratum, of its Ethereum and Monero dialects, on any port",
    "the same inside TLS",
    "`without`",
)
PORT = RuleInfo(
    "mining-port",
    "a port that mining pools use",
    "warning",
    "Safety & Security",
    "T1496",
    "denied attempts at ports that hardly anything else uses",
    "pools on ordinary ports",
    "`mining.PORTS`",
)

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
_GETWORK = re.compile(rb'"method"\s*:\s*"(?:getwork|getblocktemplate|submitblock|eth_getWork|eth_submitWork)"')
_LOGIN = re.compile(rb'"method"\s*:\s*"login"')
_LOGIN_PARTS = (b'"agent"', b'"algo"', b'"rigid"')


_SENDING = frozenset({"send", "sendall", "write", "dumps", "send_json", "sendto", "post"})


class Mining(Detector):
    """Misses a renamed program without telling options, and a pool behind TLS on an ordinary port and name."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (PROGRAM, POOL, STRATUM, PORT)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        return self._record(event) if isinstance(event, EgressRecord) else self._command(event)

    def _command(self, event: Deed) -> Iterator[Finding]:
        did = actions_of(event)
        for command in did.commands:
            evidence = _pays(command) or any(_OPTIONS.fullmatch(word) for word in command.arguments)
            if evidence or _names_algorithm(command) or command.program.lower().removesuffix(".exe") in PROGRAMS:
                yield finding(PROGRAM, event, command.program, [command.text])
        for call in did.calls:
            sent = " ".join(call.strings).encode("utf-8", "replace")
            if speaks_stratum(sent) and call.callee.rpartition(".")[2] in _SENDING:
                yield finding(PROGRAM, event, call.callee, [f"{call.callee}: {' '.join(call.strings)}"])

    def _record(self, record: EgressRecord) -> Iterator[Finding]:
        attempt = record.attempt
        speaks = speaks_stratum(record.opening_up)
        pools = {name: pool for name in sorted(names_of(attempt)) if (pool := below(name, POOLS)) is not None}
        if speaks:
            yield finding(STRATUM, record, where(attempt), [attempt.target, record.opening_up.decode("latin-1")])
        for name, pool in pools.items():
            yield finding(POOL, record, pool, [attempt.target, name])
        if speaks or pools:
            return  # a port is a guess, and nobody has to guess any more
        if record.phase == "attempt" and attempt.protocol == "tcp" and attempt.port in PORTS:
            if special_kind(attempt) not in {"loopback", "unspecified"} and not record.decision.allowed:
                yield finding(PORT, record, where(attempt), [attempt.target])


_WALLET = re.compile(
    r"(?:[^:\s]{1,20}:)?(?:[48][0-9AB][1-9A-HJ-NP-Za-km-z]{60,106}|bc1[a-z0-9]{25,60}|0x[0-9a-fA-F]{40}|[13][1-9A-HJ-NP-Za-km-z]{25,34}|t1[A-Za-z0-9]{33})(?:[./][\w.-]{1,64})?"
)
_POOL = re.compile(r"(?:[a-z+\d]{2,20}://)?[\w.-]{1,200}:\d{2,5}")


def _pays(command: Command) -> bool:
    """A pool and a worker or wallet, as miners of all kinds take them, whatever the program is called."""
    if command.program in {"curl", "wget", "ssh", "psql", "mysql", "redis-cli", "git", "docker"}:
        return False
    pairs = list(zip(command.arguments, command.arguments[1:], strict=False))
    split = [(word.partition("=")[0], word.partition("=")[2]) for word in command.arguments if "=" in word]
    pool = any(
        flag in {"-o", "--url", "--pool", "-P", "--server", "-s", "--proxy", "-F"} and _POOL.fullmatch(word)
        for flag, word in pairs + split
    )
    worker = any(
        flag in {"-u", "--user", "--wallet", "-w", "--worker", "-O", "--userpass", "--address", "--payout"}
        for flag, _ in pairs + split
    )
    wallet = any(_WALLET.fullmatch(word) for _, word in pairs + split) or any(
        _WALLET.fullmatch(word) for word in command.arguments
    )
    hashing = any(
        re.match(
            r"--?(?:hash-?rate|cpu-max-threads|max-cpu-usage|cuda|opencl|intensity|rig-id|nicehash|randomx|threads|cpu-priority|diff(?:iculty)?|stratum|coinbase-addr|no-longpoll)\b",
            word,
        )
        for word in command.arguments
    )
    return (pool and worker and (wallet or hashing or _has_password(pairs))) or (wallet and (pool or hashing))


def _has_password(pairs: list[tuple[str, str]]) -> bool:
    """``-p x``: pools want a password and ignore it."""
    return any(flag in {"-p", "--pass", "--password"} and len(word) <= 3 for flag, word in pairs)


def _names_algorithm(command: Command) -> bool:
    pairs = zip(command.arguments, command.arguments[1:], strict=False)
    named = any(flag in {"-a", "--algo", "--coin"} and _ALGORITHM.fullmatch(word) for flag, word in pairs)
    return named and bool({"-o", "-u", "--url", "--user", "--pool"} & set(command.arguments))


def speaks_stratum(sent: bytes) -> bool:
    """Stratum v1, its Ethereum and its Monero dialects.  A JSON-RPC ``login`` alone is anybody's."""
    if _METHODS.search(sent) or _GETWORK.search(sent):
        return True
    return _LOGIN.search(sent) is not None and any(part in sent for part in _LOGIN_PARTS)
