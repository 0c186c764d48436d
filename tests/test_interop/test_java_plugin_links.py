"""Each reference of the plug-in to RocketMQ's classes, looked for in the jars of old brokers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.lacking import lacks
from tests.support.patience import HANGS_AFTER_S, completed
from tests.support.rocketmq_broker import BrokerInstall, JavaMissing, built_plugin

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]

REFERENCE = re.compile(
    r"= (?:InterfaceMethod|Method|Field)ref +\S+ +// ([\w/$]+)\.\"?([\w<>$]+)\"?:(\S+)"
)
HEADER = re.compile(r"^(?:\w+ )*(?:class|interface|enum) ([\w.$]+)(.*)\{$")
STORE, BASE = (
    "org/apache/rocketmq/store/MessageStore",
    ("org/apache/rocketmq/store/plugin/AbstractPluginMessageStore"),
)
PLUGIN = "io/tieredstore/rocketmq/TieredStorePlugin"
OF_5_5 = {
    "getMessageRocksDBStorage",
    "getTimerMessageRocksDBStore",
    "getTransMessageRocksDBStore",
    "queryMessage",
    "setTimerMessageRocksDBStore",
    "setTransMessageRocksDBStore",
}
"""Methods that no older broker has or calls; queries have another form there besides."""
OF_JAVA = {"equals", "getClass", "hashCode", "ordinal", "toString"}

Member = tuple[str, str]
"""Name and descriptor."""


@dataclass
class JavaClass:
    """What `javap` says of a class."""

    parents: list[str]
    members: dict[Member, bool] = field(default_factory=dict)
    """True: it is abstract."""


def classes_of(path: str, names: Iterable[str]) -> dict[str, JavaClass]:
    """Classes of a class path with their members, without those that it lacks."""
    done = completed(["javap", "-s", "-p", "-cp", path, *names])
    found, line_of_member, current = dict[str, JavaClass](), "", JavaClass([])
    for line in done.stdout.splitlines():
        if header := HEADER.match(line):
            parents = re.sub(r"<[^{]*?>(?=[ ,]|$)", "", header[2])
            words = re.split(r"[\s,]+|extends|implements", parents)
            current = JavaClass([word.replace(".", "/") for word in words if "." in word])
            found[header[1].replace(".", "/")] = current
        elif line.startswith("    descriptor: "):
            if name := re.search(r"([\w.$]+)[(;]", line_of_member):  # else the static block
                called = "<init>" if "." in name[1] else name[1]
                member = called, line.removeprefix("    descriptor: ")
                current.members[member] = " abstract " in line_of_member
        elif line.startswith("  "):
            line_of_member = line
    return found


def has(known: Mapping[str, JavaClass], name: str, member: Member) -> bool:
    one = known.get(name)
    return one is not None and (
        member in one.members or any(has(known, parent, member) for parent in one.parents)
    )


@pytest.mark.parametrize(
    "version",
    [
        "5.5.0",
        pytest.param("5.3.3", marks=pytest.mark.nightly),
        pytest.param("5.1.4", marks=pytest.mark.nightly),
    ],
)
def test_each_reference_is_in_the_broker(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_VERSION", version)
    try:
        jar, library = built_plugin(), BrokerInstall.fetched().library
    except JavaMissing as missing:
        lacks(str(missing))
    names = re.findall(r"io/[\w/$]+(?=\.class)", completed(["jar", "tf", str(jar)]).stdout)
    said = completed(["javap", "-v", "-p", "-cp", str(jar), *names]).stdout
    wanted = {(found[1], (found[2], found[3])) for found in REFERENCE.finditer(said)}
    ours = classes_of(str(jar), names)
    assert len(wanted) > 100
    known = ours | known_of(library, {owner for owner, _ in wanted if "rocketmq" in owner})
    lacking = {
        (owner, *member)
        for owner, member in wanted
        if "rocketmq" in owner and not has(known, owner, member) and member[0] not in OF_JAVA
    }
    is_old = version != "5.5.0"
    assert {name for _, name, _ in lacking} == (OF_5_5 if is_old else set())
    theirs = {one for one, is_abstract in known[STORE].members.items() if is_abstract}
    done = known[BASE].members.keys() | ours[PLUGIN].members.keys()
    assert theirs - done == set(), "a broker would call what is not there"


def known_of(library: Path, names: set[str]) -> dict[str, JavaClass]:
    """Classes and all that they derive from, but Java's own."""
    path = ":".join(map(str, sorted(library.glob("*.jar"))))
    known, asked = dict[str, JavaClass](), set[str]()
    while names := {name for name in names - asked if not name.startswith("java")}:
        asked |= names
        found = classes_of(path, [name.replace("/", ".") for name in sorted(names)])
        known |= found
        names = {parent for one in found.values() for parent in one.parents}
    return known
