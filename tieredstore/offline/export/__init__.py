"""History as tables: messages of a tier as Parquet files, partitioned by topic and day.

`job.py` plans an export and goes on with one that was begun; `task.py` is what one worker does;
`day_files.py` writes its files; `ledger.py` keeps in the target what was planned and what is done.
"""
