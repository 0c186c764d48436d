"""Tables of messages into a store of our own: staged by many processes, appended by one.

A store has one writer, so workers only check their rows and write them to files of a staging
directory (`staging.py`, over `new_rows.py`); then one process appends the files in order
(`appending.py`). What it is about to append is written down in the store directory first
(`ledger.py`), and every message bears the write's id and its number: so a write that was ended in
the middle goes on where it was, and one that is done is not done again.

```
<store>/writes/<id>.json                       begun: files, queues, first offsets; or done
<store>/writes/staged/<id>/<run>/<part>.arrow  unless another staging directory is named
```
"""
