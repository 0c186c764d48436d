"""Text from outside, made safe to print: a name must not control a terminal or break a line."""


def printable(text: str) -> str:
    """The text with a dot in place of every character that is not printable. O(length)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "." for character in text)


def escaped(text: str) -> str:
    r"""The text with `\n`, `\x1b` and so on in place of what is not printable. O(length)."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
