"""Asks the page of a follower."""

import socket
import urllib.error
import urllib.request


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def get(port: int, path: str, *, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, str]:
    """Status and body of a page; (0, reason) while nobody answers."""
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError) as error:
        return 0, str(error)


def value_of(page: str, name: str) -> float:
    """The sum of the samples whose line begins so."""
    lines = [line for line in page.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def families_of(page: str) -> set[str]:
    """The names under which the page explains its metrics."""
    return {line.split()[2] for line in page.splitlines() if line.startswith("# HELP ")}
