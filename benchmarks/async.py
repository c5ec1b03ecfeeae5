"""Runs whose generation and training overlap, next to a synchronous one: ``./dev bench async [--json FILE] [--quick]``.

What is measured and how: ``benchmarks/async_ratio.py``; the simulated share of idle GPUs: ``async_simulation.py``.
"""

from benchmarks.async_ratio import main

if __name__ == "__main__":
    main()
