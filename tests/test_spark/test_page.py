"""The code blocks of `docs/spark.md`: the whole program, then the others in one session."""

import re
from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.shown_blocks import Block, blocks_of, environment_of, ran
from tests.support.spark_settings import environment_of_programs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.checkout,
    pytest.mark.timeout(HANGS_AFTER_S),
]

PAGE = Path(__file__).parents[2] / "docs/spark.md"
SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""


def test_the_blocks_print_what_they_show(golden_tier: Path, tmp_path: Path) -> None:
    (tmp_path / "tier").symlink_to(golden_tier)
    environment = {**environment_of(), **environment_of_programs(tmp_path / "spark")}
    whole, *others = blocks_of(PAGE.read_text())
    assert "pyspark" in whole.text
    assert len(others) >= 4
    ran(whole, tmp_path, environment, joined=False)
    for name in ("totals-store", "totals-tier"):
        (tmp_path / name).rename(tmp_path / f"whole-{name}")
    assert not any(block.shown for block in others)
    (sql,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = "".join(block.text for block in others)
    program += 'append(spark.table("orders").select("topic", "body").limit(3), 1)\n'
    program += 'spark.catalog.dropTempView("orders")\n'
    program += "".join(f'spark.sql("""{statement}""")\n' for statement in sql.split(";"))
    program += 'assert spark.table("orders").count() == 2400\nspark.stop()\n'
    ran(Block("python", SESSION + program, "", 0), tmp_path, environment, joined=False)
