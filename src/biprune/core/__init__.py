"""What everything else stands on: masks, what may be in them, and files that cannot lie."""
