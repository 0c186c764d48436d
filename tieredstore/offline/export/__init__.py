"""Exports of a tier: messages as Parquet files or an Iceberg table, by topic and day or hour.

`job.py` plans an export and continues an interrupted one; `task.py` is the task of a worker;
`day_files.py` writes its files, `joining.py` joins small ones; `ledger.py` keeps plans and
finished tasks in the target.
`export_directory.py` has the files of a target, `lease.py` its one writer at a URL;
`iceberg_job.py` and `iceberg_table.py` export into a table.
"""
