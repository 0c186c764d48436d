"""Tables of messages into a store of our own: staged by many processes, appended by one.

A store has one writer. So workers only validate their rows and write them to files of a staging
directory (`staging.py`, over `new_rows.py`). Then one process appends the files in order
(`appending.py`). It first writes its plan into the store directory, and every message has the id of
the write and its number. So an interrupted write continues at its first missing message, and a
finished write is not repeated.

```
<store>/writes/<id>.json                       begun: files, queues, first offsets; or done
<store>/writes/staged/<id>/<run>/<part>.arrow  unless another staging directory is named
```
"""
