"""Requirements of Spark besides this package, and a sentence for a missing one."""

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from provider.names import is_there

INSTALL = "pip install 'tieredstore[spark]'"
NEEDED = (("pyspark", (4, 3), (5,)), ("pandas", (2, 2), (3,)), ("pyarrow", (20,), (27,)))
"""Distribution, first version, and the first one that is too new."""


def lacking() -> str:
    """Describe a package that this Python lacks, with the remedy; "" if it has all."""
    for name, first, too_new in NEEDED:
        try:
            text = version(name)
        except PackageNotFoundError:
            return f"Spark needs {name}, which is not installed: {INSTALL}"
        found = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
        if not first <= found < too_new:
            lowest, highest = (".".join(map(str, one)) for one in (first, too_new))
            return f"Spark needs {name} from {lowest} up to {highest}, not {text}: {INSTALL}"
    return ""


def lacking_java() -> str:
    """Describe the missing Java of a Spark that starts in this process; "" if it has one."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return "" if is_there(Path(home, "bin", "java")) else f"JAVA_HOME={home} holds no Java"
    if shutil.which("java"):
        return ""
    return "Spark needs a Java machine (17 or 21), and there is none: install one, or set JAVA_HOME"
