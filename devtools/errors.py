"""What a person can mend; shown as one line, without a traceback."""


class Unfit(Exception):
    """This machine, home or command line does not allow it.  The message says what to do, in one line."""
