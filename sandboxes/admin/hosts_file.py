"""Which hosts an admin has.  An operator writes them down, or they register themselves; a start forgets none.

The file has the tokens with which the hosts are asked.  It is readable for its owner alone, and what is in it is shown
to nobody but as names and addresses.
"""

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from sandboxes.backends.remote.faults import Fault
from sandboxes.backends.remote.host_address import HostUrl, canonical
from sandboxes.backends.remote.wire import HostName
from sandboxes.service.json_file import JsonFile
from sandboxes.service.refusals import NotAllowed, Refusal


class HostFault(Exception):
    """What was asked of the file cannot be done; the message says why, and what to do instead."""


class HostEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: HostName
    url: HostUrl
    token: str = Field(repr=False)
    draining: bool = False
    """Whether it gets no new sandbox; those that it has stay until they end."""
    registered_by: str | None = None
    """The id of the token with which it registered itself; None for one that an operator wrote down."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hosts: list[HostEntry] = []


class HostsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = JsonFile(path, _File)

    def entries(self) -> dict[str, HostEntry]:
        return {entry.name: entry for entry in self._file.read().hosts}

    def add(self, entry: HostEntry) -> None:
        """Raises ``HostFault`` for a name or an address in use."""
        with self._file.changing() as file:
            if any(known.name == entry.name for known in file.hosts):
                raise HostFault(f"name = '{entry.name}': a host has this name; choose another, or remove it first")
            if other := _at_same_address(entry, file.hosts):
                raise HostFault(str(_address_in_use(entry, other)))
            file.hosts.append(entry)

    def register(self, entry: HostEntry, down: Collection[str] = ()) -> None:
        """Add or replace what the same token has registered.  Raises ``NotAllowed`` for anybody else's name.

        The address of another host is refused, since its room would count twice.  One that is ``down`` and was
        registered by the same token gives its address up: networks of containers give addresses out again.
        """
        known = self.entries().get(entry.name)
        if known is not None and known.registered_by != entry.registered_by:
            raise NotAllowed(f"name = '{entry.name}': another host has this name; choose another one")
        if known is not None and known == entry.model_copy(update={"draining": known.draining}):
            return
        with self._file.changing() as file:
            others = [other for other in file.hosts if other.name != entry.name]
            if other := _at_same_address(entry, others):
                if other.name not in down or other.registered_by != entry.registered_by:
                    raise Refusal("Another host has this address", _address_in_use(entry, other))
                others.remove(other)
            draining = known is not None and known.draining
            file.hosts = [*others, entry.model_copy(update={"draining": draining})]

    def drain(self, name: str, draining: bool) -> None:
        with self._file.changing() as file:
            place = self._place(file, name)
            file.hosts[place] = file.hosts[place].model_copy(update={"draining": draining})

    def remove(self, name: str) -> None:
        with self._file.changing() as file:
            del file.hosts[self._place(file, name)]

    def _place(self, file: _File, name: str) -> int:
        """Raises ``HostFault`` if none has the name."""
        names = [entry.name for entry in file.hosts]
        if name not in names:
            raise HostFault(f"name = '{name}': no host has this name; there are: {', '.join(names) or 'none'}")
        return names.index(name)


def _at_same_address(entry: HostEntry, others: list[HostEntry]) -> HostEntry | None:
    return next((other for other in others if canonical(other.url) == canonical(entry.url)), None)


def _address_in_use(entry: HostEntry, other: HostEntry) -> Fault:
    message = f"host '{other.name}' has this address, and its room would count twice"
    remedy = f"give another address, or remove '{other.name}' first"
    return Fault(field="url", value=entry.url, message=message, remedy=remedy)
