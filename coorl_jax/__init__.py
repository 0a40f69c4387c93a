"""Deep CFR for Lost Cities, in one process, on one accelerator."""
