"""Forty terminal tasks of the project: eight domains, five tasks each, all of them functions of a seed."""
