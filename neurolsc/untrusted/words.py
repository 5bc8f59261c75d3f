"""Names that come from files, made fit to be shown."""

__all__ = ["clean"]

MOST = 80
"""characters of a name"""


def clean(text: object, most: int = MOST) -> str:
    r"""A text on one line, without what moves a cursor or turns the reading direction.

    Args:
        text: a name, or anything that is shown as one.
        most: characters that are kept; a longer text ends in an ellipsis.

    Returns:
        The text, with every character that is not printable as its escape.

    Example:
        >>> clean("six\x1b[2J"), clean("a" * 100, most=5)
        ('six\\x1b[2J', 'aaaa…')
    """
    text = str(text)
    if len(text) <= most and text.isprintable():
        return text
    cut = text if len(text) <= most else text[: most - 1] + "…"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
