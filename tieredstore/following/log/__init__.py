"""CommitLog of a broker as bytes: mapped files, tail, rounds of records, units from records.

Begin with `followed_log.py` and `round_read.py`.
"""
