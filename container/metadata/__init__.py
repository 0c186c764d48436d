"""What a tier is: records, the operations that change them, invariants and codec; all pure."""
