"""Everything that touches the outside world: object stores, file segments over them, the clock.

Knows nothing of messages. Import from here to write a provider of your own; `CONTRACT.md` beside
this file says what a storage must offer, and `provider.testing` holds the same promises as tests.
"""
