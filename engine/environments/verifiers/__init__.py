"""Verifiers of answers, a module each, behind one protocol (``contract.py``)."""
