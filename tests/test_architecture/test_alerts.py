"""The alerts over scripted lives of a follower: each fires when it should, and no other one."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.lacking import lacks
from tests.support.patience import completed

LIVES = Path(__file__).parent / "alert_lives.yml"
RULES = Path(__file__).parents[2] / "conf" / "alerts.yml"


@pytest.mark.slow
def test_each_alert_fires_in_the_lives_that_it_is_for_and_in_no_other() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        lacks("promtool is not here to run the alerts: install the package prometheus")
    done = completed([promtool, "test", "rules", LIVES.name], cwd=LIVES.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_life_that_it_fires_in() -> None:
    text = LIVES.read_text()
    alerts = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    assert {name for name in alerts if f'"{name}"' not in text} == set()
