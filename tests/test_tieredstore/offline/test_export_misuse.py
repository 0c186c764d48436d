"""An export that cannot be is refused with one sentence, before anything is written."""

from pathlib import Path

import pytest

from provider.errors import NotFound
from tests.support.cli import run
from tests.test_tieredstore.offline.test_export import Growing, exported, planned
from tieredstore.config.sources import ConfigError


def test_other_options_another_tier_and_other_things_are_refused(
    golden_tier: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    exported(golden_tier, out, topics=("G_Tx",))
    with pytest.raises(ConfigError, match="was begun with topics G_Tx, not G_Keys"):
        planned(golden_tier, out, topics=("G_Keys",))
    growing = Growing(tmp_path)
    growing.grow(1)
    with pytest.raises(ConfigError, match="is of golden-a of cluster GoldenCluster"):
        planned(growing.tier, out)
    with pytest.raises(ConfigError, match="is not empty, and holds no export"):
        planned(golden_tier, tmp_path)


def test_a_time_that_differs_is_said_as_people_write_it(golden_tier: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(golden_tier, out, topics=("G_Tx",), since_ms=1_795_262_500_000)
    with pytest.raises(
        ConfigError,
        match=r"begun with since 2026-11-21T12:01:40\.000Z, not 1970-01-01T00:00:00\.007Z",
    ):
        planned(golden_tier, out, since_ms=7)
    with pytest.raises(ConfigError, match=r"with until not given, not 9223372036854775807: name"):
        planned(golden_tier, out, until_ms=2**63 - 1)


def test_a_queue_that_no_topic_has_is_said_and_begins_no_export(
    golden_tier: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="has a queue 99; there are 0, 1, 2, 3"):
        planned(golden_tier, tmp_path / "out", queues=(99,))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3:/bucket/orders", "the URL of a tier has two slashes"),
        ("s3://", "names no bucket: write s3://bucket/prefix"),
        ("nothing://bucket/orders", "nothing is installed for nothing:// URLs"),
    ],
)
def test_a_url_that_names_no_place_makes_no_directory(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("--tier", golden_tier, "export", url, status=None)
    assert done.status in {2, 3}
    assert sentence in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (("bodies",), "columns: there is no column 'bodies': did you mean body"),
        (("BODY",), "columns: there is no column 'BODY': did you mean body"),
        (("body", "tags", "body"), "columns: the column 'body' is named twice"),
        (("body", "day:string"), "columns: the property 'day' cannot be a column, because"),
        (("body", "Topic:long"), "columns: the property 'Topic' cannot be a column, because"),
        (("topic",), "columns: the topic is in the names of directories, not in files"),
    ],
)
def test_columns_of_which_no_file_can_be_made_are_refused(
    golden_tier: Path, tmp_path: Path, columns: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        planned(golden_tier, tmp_path / "out", columns=columns)
    assert not (tmp_path / "out").exists()
