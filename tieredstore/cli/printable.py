"""Text from outside on a terminal: a name or a tag must not steer it, nor begin a new line."""


def printable(text: str) -> str:
    """The text with a dot for everything that is no visible character or space. O(length)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "." for character in text)
