"""Files that hold credentials, read by commands or code."""

import re
from typing import ClassVar

from sandboxes.egress.detectors.doings import doings
from sandboxes.egress.detectors.finding import Event, Finding, RuleInfo, finding
from sandboxes.egress.record import EgressRecord

READ = RuleInfo("credential-read", "a file with credentials is read", "critical", "Safety & Security", "T1552.001")
SEARCH = RuleInfo(
    "credential-search", "the disk is searched for credentials", "critical", "Safety & Security", "T1552.001"
)

PATHS = re.compile(
    r"/etc/(?:g?shadow-?|sudoers)$|\.ssh/(?:id_(?:rsa|dsa|ecdsa|ed25519)|identity|\*)$|\.ssh/?$|\.aws/(?:credentials|config)?$"
    r"|\.netrc$|\.git-credentials$|\.docker/config\.json$|\.kube/config$|\.config/gcloud|\.azure/|\.pypirc$|\.huggingface/token$"
    r"|huggingface/token$|secrets/kubernetes\.io/serviceaccount|\.vault-token$|\.gnupg/|\.config/gh/hosts\.yml|\.pgpass$"
    r"|^/proc/(?:\d+|\*|self|\?)/environ$|\.mozilla/.{0,200}logins\.json|Login Data$|\.bash_history$|/run/secrets/"
    r"|\.bitcoin/wallet|\.ethereum/keystore"
)
_SEARCHED = re.compile(r"id_rsa|id_ed25519|\.pem\b|\.aws|\.netrc|credential|\.kdbx|wallet\.dat|\.key\b", re.I)
_KEYS = re.compile(r"AKIA|BEGIN (?:RSA|OPENSSH|EC) PRIVATE|aws_secret|api[_-]?key|password|secret|token", re.I)
_WIDE = frozenset({"/", "/home", "/root", "~", "/etc", "/home/", "/root/", "/var", "/opt", "$HOME", "/mnt"})


class Credentials:
    """Reads only: making a key or writing a netrc is work.  Misses paths that are computed, and names of one's own."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (READ, SEARCH)

    def feed(self, event: Event) -> Finding | None:
        if isinstance(event, EgressRecord):
            return None
        did = doings(event)
        for path in did.reads:
            if PATHS.search(path):
                return finding(READ, event, path, [path])
        for command in did.commands:
            wide = any(word in _WIDE for word in command.arguments)
            if wide and command.program in {"find", "locate", "fd"} and _SEARCHED.search(command.text):
                return finding(SEARCH, event, command.program, [command.text])
            recursive = any(re.fullmatch(r"-[a-zA-Z]*[rR][a-zA-Z]*|--recursive", word) for word in command.arguments)
            if wide and (command.program == "rg" or (command.program in {"grep", "egrep"} and recursive)):
                if _KEYS.search(command.text):
                    return finding(SEARCH, event, command.program, [command.text])
        return None
