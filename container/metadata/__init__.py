"""Metadata of a tier: records, the operations that change them, invariants and codec. All pure."""
