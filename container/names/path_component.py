"""Which names may become one component of a path."""

from provider.names import COMPONENT_BYTES_MAX

_DELETE = 0x7F
_CONTROL_ENDS = (0x20, 0xA0)
_SURROGATES = (0xD800, 0xE000)


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < _CONTROL_ENDS[0] or _DELETE <= code < _CONTROL_ENDS[1]


def _is_surrogate(character: str) -> bool:
    return _SURROGATES[0] <= ord(character) < _SURROGATES[1]


def check_path_component(name: str) -> str | None:
    """Why `name` cannot be one safe path component, or None if it can. O(length).

    For topics, clusters and brokers: a name from outside must never reach another directory, a
    name of ours (those begin with `@`), or an error of the file system.
    """
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it is a relative directory"
    elif name.startswith("@"):
        reason = "it begins with @, which is reserved for the tier's own objects"
    elif "/" in name or "\\" in name:
        reason = "it holds a path separator"
    elif any(map(_is_control, name)):
        reason = "it holds a control character"
    elif any(map(_is_surrogate, name)):
        reason = "it cannot be encoded in UTF-8"
    elif len(name.encode()) > COMPONENT_BYTES_MAX:
        reason = f"it has {len(name.encode())} bytes, more than {COMPONENT_BYTES_MAX}"
    return reason
