"""Exports of a tier: messages as Parquet files or an Iceberg table, partitioned by topic and day.

`job.py` plans an export and continues an interrupted one; `task.py` is the task of a worker;
`day_files.py` writes its files; `ledger.py` keeps plans and finished tasks in the target.
`iceberg_job.py` and `iceberg_table.py` export into a table.
"""
