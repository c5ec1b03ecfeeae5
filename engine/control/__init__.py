"""The control loop of a run: who does what when, and what is left behind if somebody dies.

Read ``loop.py`` first; ``crew.py`` says what the loop asks of its actors, ``actors.py`` is the only
file of the engine that imports Ray, and ``spool.py`` with ``shipper.py`` carry the events away.
"""
