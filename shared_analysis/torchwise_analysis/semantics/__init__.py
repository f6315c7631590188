"""What library calls mean to the rules driver: one module per library, one entry per API."""
