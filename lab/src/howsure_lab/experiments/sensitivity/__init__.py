"""What happens if the assumed sensor noise is wrong (Table S1 of the paper)."""
