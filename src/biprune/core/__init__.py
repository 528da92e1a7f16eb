"""What all else builds on: masks, the units they are made of, and files written as a whole."""
