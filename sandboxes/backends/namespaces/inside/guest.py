"""The interpreter that a user's cells run in: a fork of the agent, stripped of all that is the agent's.

It reads one cell at a time, or the order to copy itself, from the socket that is file descriptor 3,
and reports on descriptor 4 how the cell ended.
Each cell comes with a nonce, with which its report must begin: what was written before, by a thread
or child of a former cell, is no report of this one.  The code that runs can find its own nonce and
forge its own report, as any program may choose its exit code; it can say nothing on behalf of the
agent, whose socket it does not hold.
"""

import _socket
import builtins
import gc
import os
import struct
import sys
from _collections_abc import Callable

from sandboxes.backends.namespaces.inside import copies

TYPE_CHECKING = False  # ``typing`` would cost milliseconds
if TYPE_CHECKING:
    import _ast

CELL_FD, REPORT_FD = 3, 4
NONCE_BYTES = 16
REPORT = struct.Struct("!B?iH")
ONLY_AST = 0x400
"""``ast.PyCF_ONLY_AST``; importing ``ast`` would cost milliseconds."""
LONGEST_NAME_BYTES = 200
FINE, FAILED, OUT_OF_MEMORY = range(3)
OUTCOMES = {FINE: "ok", FAILED: "error", OUT_OF_MEMORY: "memory"}
_ready: list[dict[str, object]] = []
"""The variables of a ``__main__`` that was prepared beforehand, if one was."""
_forgotten: list[object] = []
"""Modules of the agent.  To free them would write to some hundred pages that we share with it, and copy each."""
ShowTraceback = Callable[..., object]
OWN_PACKAGE = "sandboxes"
REHEARSALS = 16
"""How often a cell is rehearsed: until Python has adapted its code to what it meets; else every process would adapt its
own copy."""


def serve() -> None:
    """Run cells until the agent closes the pipe.  Never returns."""
    gc.enable()
    own_pid = os.getpid()
    display_traceback = sys.__excepthook__
    variables = _ready[0] if _ready else prepare()
    sys.path.insert(0, "/work")  # not before: agent and zygote import nothing from where guests write
    # What every cell needs is loaded, and its pages are ours, before anyone waits.
    run_cell(b"None", "<rehearsal>", {}, display_traceback)
    number = 0
    cells = _socket.socket(fileno=CELL_FD)
    while True:
        cell = read_cell(cells)
        if isinstance(cell, int):
            copies.keep_a_copy(cell)
            own_pid = os.getpid()  # we may be a copy that was made long after
            continue
        if cell is None:
            os._exit(0)
        nonce, code = cell[:NONCE_BYTES], cell[NONCE_BYTES:]
        number += 1
        report = run_cell(code, f"<cell {number}>", variables, display_traceback)
        if os.getpid() != own_pid:
            os._exit(0)  # the cell forked, and this is its child: it must not answer for its parent
        os.write(REPORT_FD, nonce + report)
        if report[0] == OUT_OF_MEMORY:
            os._exit(0)  # out of memory: what is left of this interpreter cannot be trusted to work


def prepare_for_all() -> None:
    """What each interpreter begins with is made here, once, by zygote or agent: pages that nobody writes to are copied
    for nobody.  A second call does nothing."""
    if _ready:
        return
    reads, writes = os.pipe()
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    for fd in kept:
        os.dup2(writes, fd)  # of the kind that guests get: Python asks what a stream can do when it opens it
    prepare()
    for _ in range(REHEARSALS):
        run_cell(b"None", "<rehearsal>", {}, sys.__excepthook__)
    for fd, former in kept.items():
        os.dup2(former, fd)
    for fd in (reads, writes, *kept.values()):
        os.close(fd)
    gc.freeze()


def prepare() -> dict[str, object]:
    """Return what ``serve`` begins with."""
    # A millisecond, the first time: not before the agent's first fork (agent.run), and not once a cell can interfere.
    global _ast
    import _ast

    variables = fresh_main()
    _ready.append(variables)
    return variables


def fresh_main() -> dict[str, object]:
    """An empty ``__main__`` in an interpreter that knows nothing of the agent."""
    for name in list(sys.modules):
        if name == OWN_PACKAGE or name.startswith(OWN_PACKAGE + "."):
            _forgotten.append(sys.modules.pop(name))
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = [""]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    # They stay open as long as the interpreter lives.
    sys.stdin = open(0, encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=8192, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=8192, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    return vars(main)


def read_cell(cells: _socket.socket) -> bytes | int | None:
    """A nonce and code; or the control socket of a frozen copy that is wanted; nothing at the end."""
    head, ancillary, _, _ = cells.recvmsg(4, _socket.CMSG_LEN(copies.ONE_DESCRIPTOR.size))
    head += read_exactly(cells, 4 - len(head)) if head else b""
    if len(head) < 4:
        return None
    length = struct.unpack("!I", head)[0]
    if length == copies.FREEZE:
        control: int = copies.ONE_DESCRIPTOR.unpack(ancillary[0][2])[0]
        return control
    return read_exactly(cells, NONCE_BYTES + length) or None


def read_exactly(cells: _socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = cells.recv(min(size, 65536))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def run_cell(code: bytes, filename: str, variables: dict[str, object], display_traceback: ShowTraceback) -> bytes:
    """Run one cell and say how it ended: outcome, exit code, class name of what it raised."""
    try:
        evaluate(code, filename, variables)
        return flush() or REPORT.pack(FINE, False, 0, 0)
    except SystemExit as leaving:
        exit_value = leaving.code
        status = exit_value if isinstance(exit_value, int) else int(exit_value is not None)
        if isinstance(exit_value, str):
            complain(exit_value + "\n")
        return flush() or ended(FAILED, leaving, min(max(status, -(2**31)), 2**31 - 1))
    except MemoryError as error:
        error.__traceback__ = None
        complain("MemoryError\n")
        return ended(OUT_OF_MEMORY, error)
    except BaseException as error:
        try:
            # Only the cell's own frames: the first two are this function and ``evaluate``.
            inner = error.__traceback__ and error.__traceback__.tb_next
            error = error.with_traceback(inner and inner.tb_next)
            display_traceback(type(error), error, error.__traceback__)
        except BaseException as second:  # a hostile __str__, or a stderr that the cell closed
            complain(f"{type(error).__name__} ({type(second).__name__} while it was shown)\n")
        return flush() or ended(FAILED, error)


def evaluate(code: bytes, filename: str, variables: dict[str, object]) -> None:
    """Run the statements; show the value of the last one if it is an expression."""
    tree = compile(code.decode("utf-8", "replace"), filename, "exec", ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, filename, "exec"), variables)
    if last is not None:
        exec(compile(_ast.Interactive(body=[last]), filename, "single"), variables)


def flush() -> bytes:
    """Send what the cell printed; return a report if that fails (it may have closed its own stdout)."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        return ended(FAILED, error)
    return b""


def complain(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:
        return  # the cell broke its own stderr: the report still carries the class


def ended(outcome: int, error: BaseException, exit_code: int | None = None) -> bytes:
    name = type(error).__name__.encode("utf-8", "replace")[:LONGEST_NAME_BYTES]
    return REPORT.pack(outcome, exit_code is not None, exit_code or 0, len(name)) + name


def read_report(message: bytes, nonce: bytes) -> tuple[str, int | None, bytes] | None:
    """The agent's side: outcome, exit code, exception; ``None`` if this is no report of the cell with that nonce."""
    report = message.removeprefix(nonce)
    if len(nonce) != NONCE_BYTES or len(message) - len(report) != NONCE_BYTES or len(report) < REPORT.size:
        return None
    outcome, exited, exit_code, name_bytes = REPORT.unpack_from(report)
    if outcome not in OUTCOMES or len(report) != REPORT.size + name_bytes or name_bytes > LONGEST_NAME_BYTES:
        return None
    return OUTCOMES[outcome], exit_code if exited else None, report[REPORT.size :]
