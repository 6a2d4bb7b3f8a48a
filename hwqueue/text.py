"""Text that others wrote, in lines of ours."""


def one_line(fact: object) -> str:
    """A fact for a log: nothing in it begins another line, or moves a terminal's cursor."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in str(fact)
    )
