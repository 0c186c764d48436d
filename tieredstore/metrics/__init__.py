"""What operators see of a follower: metrics, and whether it lives and works.

`moment.py` is one look at everything, `families.py` the names and units of all metrics made of it,
`page.py` the verdict on it, and `page.py` serves the three over HTTP.
"""
