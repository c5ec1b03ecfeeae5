"""What runs inside a sandbox: the agent (process 1), and the interpreter that it forks for a user.

These modules run on the system's Python without site-packages and must start in milliseconds: they
import builtin modules only, and often the C half alone (``_signal``, ``_ast``, ``_ctypes``), because
``collections`` by itself would cost a tenth of a start.  The host compiles them once and sends them
through the agent's socket.
"""
