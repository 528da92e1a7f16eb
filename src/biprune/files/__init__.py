"""Dense runs, tickets and small models on disk, without pickle."""
